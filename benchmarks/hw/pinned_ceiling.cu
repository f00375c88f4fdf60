/* How fast kernels read and write pinned memory, whatever they are made of, beside a plain copy.
 *
 *     nvcc -arch=sm_90 -O3 -std=c++17 -o pinned_ceiling pinned_ceiling.cu && ./pinned_ceiling
 *
 * `ld/st`: plain loads and stores of 16 bytes, eight under way in a thread. `bulk`: the bulk copies of
 * Hopper's own engine between memory and shared memory, several chunks under way in a program.
 * 128 MiB, the median of seven. Prints what came out wrong: 0.
 */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error) {                                                                               \
            printf("%s, line %d\n", cudaGetErrorString(error), __LINE__);                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* One thread of a program drives its copies: memory -> shared memory -> memory. */
__global__ void bulk(const char *source, char *target, size_t size, int chunk, int stages) {
    extern __shared__ __align__(128) char buffer[];
    __shared__ __align__(8) uint64_t barriers[16];
    if (threadIdx.x) return;
    for (int s = 0; s < stages; s++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barriers[s])));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async.shared::cta;");
    size_t total = size / chunk, mine = 0;
    for (size_t i = blockIdx.x; i < total; i += gridDim.x) mine++;
    auto at = [&](size_t k) { return (blockIdx.x + k * gridDim.x) * (size_t)chunk; };
    auto load = [&](size_t k) {
        int s = k % stages;
        uint32_t barrier = shared_address(&barriers[s]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(chunk)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                     "%2, [%3];" ::"r"(shared_address(buffer + (size_t)s * chunk)),
                     "l"(source + at(k)), "r"(chunk), "r"(barrier)
                     : "memory");
    };
    size_t ahead = mine < (size_t)(stages - 1) ? mine : (size_t)(stages - 1);
    for (size_t k = 0; k < ahead; k++) load(k);
    for (size_t k = 0; k < mine; k++) {
        int s = k % stages;
        uint32_t phase = (k / stages) & 1, barrier = shared_address(&barriers[s]), done = 0;
        while (!done)
            asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0,1,0,p;}"
                         : "=r"(done)
                         : "r"(barrier), "r"(phase)
                         : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         target + at(k)),
                     "r"(shared_address(buffer + (size_t)s * chunk)), "r"(chunk)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        if (k + ahead < mine) {
            asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            load(k + ahead);
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void plain(const int4 *source, int4 *target, size_t count) {
    const int each = 8;
    size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t base = (size_t)blockIdx.x * blockDim.x * each; base < count; base += threads * each) {
        int4 words[each];
#pragma unroll
        for (int i = 0; i < each; i++) words[i] = __ldcs(&source[base + i * blockDim.x + threadIdx.x]);
#pragma unroll
        for (int i = 0; i < each; i++) target[base + i * blockDim.x + threadIdx.x] = words[i];
    }
}

template <class Act> float median_ms(Act act) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    act();
    std::vector<float> times;
    for (int i = 0; i < 7; i++) {
        float ms;
        cudaEventRecord(begin);
        act();
        cudaEventRecord(end);
        CHECK(cudaEventSynchronize(end));
        cudaEventElapsedTime(&ms, begin, end);
        times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[3];
}

int main() {
    size_t size = 128 << 20;
    char *host, *device;
    CHECK(cudaHostAlloc((void **)&host, size, cudaHostAllocMapped));
    CHECK(cudaMalloc((void **)&device, size));
    auto fill = [&](uint64_t more) {
        for (size_t i = 0; i < size; i += 8)
            *(uint64_t *)(host + i) = i * 0x9E3779B97F4A7C15ull + more;
    };
    fill(0);
    CHECK(cudaFuncSetAttribute(bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
    for (int store = 0; store < 2; store++) {
        char *source = store ? device : host, *target = store ? host : device;
        float ms = median_ms([&] { cudaMemcpyAsync(target, source, size, cudaMemcpyDefault); });
        printf("%s memcpy %.2f GB/s\n", store ? "d2h" : "h2d", size / ms / 1e6);
        for (int grid : {16, 32, 132}) {
            ms = median_ms([&] { plain<<<grid, 128>>>((int4 *)source, (int4 *)target, size / 16); });
            printf("  ld/st grid %d: %.2f\n", grid, size / ms / 1e6);
        }
        for (int chunk : {2048, 8192, 32768})
            for (int grid : {8, 16, 32, 132}) {
                int stages = std::min(8, (192 << 10) / chunk);
                ms = median_ms([&] {
                    bulk<<<grid, 32, (size_t)chunk * stages>>>(source, target, size, chunk, stages);
                });
                CHECK(cudaGetLastError());
                printf("  bulk chunk %d stages %d grid %d: %.2f\n", chunk, stages, grid,
                       size / ms / 1e6);
            }
    }
    CHECK(cudaMemset(device, 0, size));
    fill(1);
    bulk<<<32, 32, 32768 * 6>>>(host, device, size, 32768, 6);
    std::vector<char> there(size);
    CHECK(cudaMemcpy(there.data(), device, size, cudaMemcpyDeviceToHost));
    size_t bad = 0;
    for (size_t i = 0; i < size; i += 8)
        bad += *(uint64_t *)(there.data() + i) != *(uint64_t *)(host + i);
    printf("bad %zu\n", bad);
    return bad != 0;
}
