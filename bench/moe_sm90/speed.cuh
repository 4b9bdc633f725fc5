// What both programs that time these kernels are made of: shapes, random data, memory, times.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

using Half = __nv_bfloat16;

struct Shape {
  std::string name;
  int64_t T, D, F, E, K;
  double zipf = 0;         // exponent of the experts' popularity
  bool one_heavy = false;  // one expert with half of all rows
  int64_t empty = 0;       // so many experts without rows
};

const Shape kBenchShapes[] = {
    {"S7-256", 24576, 1536, 256, 128, 8},     {"S30-512", 32768, 4096, 512, 128, 8},
    {"S120-1024", 32768, 4096, 1024, 128, 8}, {"Qwen3-30B", 32768, 2048, 768, 128, 8},
    {"OLMoE", 32768, 2048, 1024, 64, 8},      {"Mixtral", 8192, 4096, 14336, 8, 2}};

__device__ float uniform(uint64_t i, uint32_t seed) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32;
  return static_cast<float>(x >> 40) * 0x1p-24f;
}
__device__ float normal(uint64_t i, uint32_t seed) {
  const float r = sqrtf(-2 * logf(uniform(i, seed) + 1e-7f));
  return r * cosf(6.2831853f * uniform(i, seed + 77));
}

__global__ void fill_kernel(Half* data, int64_t n, float scale, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    data[i] = __float2bfloat16(scale * normal(i, seed));
  }
}

// Device memory with a poisoned guard band behind it.
struct Memory {
  static constexpr int64_t kGuard = 4096;
  explicit Memory(int64_t n) : bytes(n) {
    TROUPE_CUDA_CHECK(cudaMalloc(&data, n + kGuard));
    poison();
  }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  void poison() { TROUPE_CUDA_CHECK(cudaMemset(data, 0xff, bytes + kGuard)); }
  bool guard_intact() const {
    std::vector<uint8_t> guard(kGuard);
    TROUPE_CUDA_CHECK(cudaMemcpy(guard.data(), static_cast<uint8_t*>(data) + bytes, kGuard,
                                 cudaMemcpyDeviceToHost));
    return std::all_of(guard.begin(), guard.end(), [](uint8_t b) { return b == 0xff; });
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  template <class T>
  void put(const std::vector<T>& v) {
    if (v.empty()) return;
    TROUPE_CUDA_CHECK(cudaMemcpy(data, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  void* data = nullptr;
  int64_t bytes;
};

void fill(Memory& m, float scale, uint32_t seed) {
  fill_kernel<<<1024, 256>>>(m.as<Half>(), m.bytes / 2, scale, seed);
  TROUPE_LAUNCH_CHECK(nullptr);
}

MatRef in(const Memory& m, int64_t rows, int64_t cols) {
  return {m.data, Dtype::kBF16, rows, cols, cols};
}
MutRef to(const Memory& m, int64_t rows, int64_t cols, Dtype d = Dtype::kBF16) {
  return {m.data, d, rows, cols, cols};
}

PlanRef plan_of(const Shape& s, const Memory& offset, const Memory& src, const Memory& slot,
                const Memory& slot_row) {
  PlanRef p;
  p.tokens = s.T, p.choices = s.K, p.experts = s.E, p.rows = s.T * s.K;
  p.expert_offset = offset.as<int32_t>(), p.row_src = src.as<int32_t>();
  p.row_slot = slot.as<int32_t>(), p.slot_row = slot_row.as<int32_t>();
  return p;
}

struct Step {
  std::string name;
  double flops;  // 0: bound by memory
  std::function<void()> run;
  std::vector<float> ms = {};

  double median() const {
    std::vector<float> v = ms;
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  }
};

// All steps once, L2 cleared before each.
void run_cold(std::vector<Step>& steps, const Memory& flush, bool timed) {
  std::vector<cudaEvent_t> events(2 * steps.size());
  for (cudaEvent_t& e : events) TROUPE_CUDA_CHECK(cudaEventCreate(&e));
  for (size_t j = 0; j < steps.size(); ++j) {
    TROUPE_CUDA_CHECK(cudaMemsetAsync(flush.data, static_cast<int>(j), flush.bytes));
    TROUPE_CUDA_CHECK(cudaEventRecord(events[2 * j]));
    steps[j].run();
    TROUPE_CUDA_CHECK(cudaEventRecord(events[2 * j + 1]));
  }
  TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
  for (size_t j = 0; j < steps.size(); ++j) {
    float t = 0;
    TROUPE_CUDA_CHECK(cudaEventElapsedTime(&t, events[2 * j], events[2 * j + 1]));
    if (timed) steps[j].ms.push_back(t);
    cudaEventDestroy(events[2 * j]), cudaEventDestroy(events[2 * j + 1]);
  }
}

}  // namespace
}  // namespace troupe
