// Checks and times the kernels of kernels/moe_sm90 on a GPU, alone: `moe_sm90_speed check` compares
// every kernel with dot products of single outputs at awkward shapes; `moe_sm90_speed time [name]`
// prints milliseconds and TFLOP/s at the bench shapes, medians, random data, L2 cleared before each
// launch.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/moe_sm90/speed.cuh"
#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

__device__ bool bad(Half v) {
  return !isfinite(__bfloat162float(v));
}
__device__ bool bad(float v) {
  return !isfinite(v);
}

template <class T>
__global__ void count_bad_kernel(const T* data, int64_t n, unsigned long long* count) {
  unsigned long long mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    mine += bad(data[i]);
  }
  if (mine) atomicAdd(count, mine);
}

__global__ void count_different_kernel(const uint16_t* a, const uint16_t* b, int64_t n,
                                       unsigned long long* count) {
  unsigned long long mine = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    mine += a[i] != b[i];
  }
  if (mine) atomicAdd(count, mine);
}

struct HostPlan {
  std::vector<int32_t> offset, src, slot, slot_row, expert_of_row;
};

HostPlan route(const Shape& s) {
  std::mt19937 rng(12);
  std::vector<double> weight(s.E);
  for (int64_t e = 0; e < s.E; ++e) weight[e] = e < s.empty ? 0 : std::pow(e + 1.0, -s.zipf);
  std::uniform_real_distribution<double> uniform_real(0, 1);
  std::vector<std::vector<int32_t>> slots(s.E);
  std::vector<std::pair<double, int>> key(s.E);
  for (int64_t t = 0; t < s.T; ++t) {
    for (int64_t e = 0; e < s.E; ++e) {  // Weighted choice without replacement.
      const double u = std::max(uniform_real(rng), 1e-12);
      key[e] = {weight[e] > 0 ? -std::log(u) / weight[e] : 1e300, static_cast<int>(e)};
    }
    std::partial_sort(key.begin(), key.begin() + s.K, key.end());
    for (int64_t k = 0; k < s.K; ++k) {
      const bool heavy = s.one_heavy && k < (s.K + 1) / 2;  // Duplicates do not matter here.
      slots[heavy ? s.E / 2 : key[k].second].push_back(static_cast<int32_t>(t * s.K + k));
    }
  }
  HostPlan p;
  p.offset.push_back(0);
  p.slot_row.assign(s.T * s.K, -1);
  for (int64_t e = 0; e < s.E; ++e) {
    for (int32_t slot : slots[e]) {
      p.slot_row[slot] = static_cast<int32_t>(p.src.size());
      p.src.push_back(slot / static_cast<int32_t>(s.K));
      p.slot.push_back(slot);
      p.expert_of_row.push_back(static_cast<int32_t>(e));
    }
    p.offset.push_back(static_cast<int32_t>(p.src.size()));
  }
  return p;
}

struct Layer {
  Shape s;
  int64_t R;
  HostPlan host;
  Memory offset, src, slot, slot_row, expert_of_row, score, x, grad_out, w1, w2, h, a, y, grad_h,
      a_back, grad_rows, grad_w1, grad_w2, grad_score, workspace, counter;

  explicit Layer(const Shape& shape)
      : s(shape),
        R(s.T * s.K),
        host(route(s)),
        offset((s.E + 1) * 4),
        src(R * 4),
        slot(R * 4),
        slot_row(R * 4),
        expert_of_row(R * 4),
        score(R * 4),
        x(s.T * s.D * 2),
        grad_out(s.T * s.D * 2),
        w1(s.E * 2 * s.F * s.D * 2),
        w2(s.E * s.D * s.F * 2),
        h(R * 2 * s.F * 2),
        a(R * s.F * 2),
        y(R * s.D * 2),
        grad_h(R * 2 * s.F * 2),
        a_back(R * s.F * 2),
        grad_rows(R * s.D * 2),
        grad_w1(s.E * 2 * s.F * s.D * 4),
        grad_w2(s.E * s.D * s.F * 4),
        grad_score(R * 4),
        workspace(R * ((s.F + 255) / 256) * 4),
        counter(8) {
    offset.put(host.offset), src.put(host.src), slot.put(host.slot), slot_row.put(host.slot_row);
    expert_of_row.put(host.expert_of_row);
    std::mt19937 rng(5);
    std::vector<float> scores(R);
    for (float& v : scores) v = 0.05f + static_cast<float>(rng() % 1000) / 4000;
    score.put(scores);
    fill(x, 0.2f, 1), fill(grad_out, 0.2f, 2), fill(w1, 0.02f * scale(s.D), 3);
    fill(w2, 0.02f * scale(s.F), 4);
  }
  // Small widths would leave outputs near zero.
  static float scale(int64_t width) { return std::sqrt(4096.0f / static_cast<float>(width)); }

  PlanRef plan() const { return plan_of(s, offset, src, slot, slot_row); }
  MoeUpSm90 up() const {
    return {plan(),
            in(x, s.T, s.D),
            in(w1, s.E * 2 * s.F, s.D),
            score.as<float>(),
            to(h, R, 2 * s.F),
            to(a, R, s.F)};
  }
  MoeDownSm90 down() const {
    return {plan(), in(a, R, s.F), in(w2, s.E * s.D, s.F), to(y, R, s.D)};
  }
  MoeHiddenGradSm90 hidden() const {
    return {plan(),
            in(grad_out, s.T, s.D),
            in(w2, s.E * s.D, s.F),
            in(h, R, 2 * s.F),
            score.as<float>(),
            to(grad_h, R, 2 * s.F),
            to(a_back, R, s.F),
            grad_score.as<float>(),
            workspace.data};
  }
  MoeRowsGradSm90 rows() const {
    return {plan(), in(grad_h, R, 2 * s.F), in(w1, s.E * 2 * s.F, s.D), to(grad_rows, R, s.D)};
  }
  MoeDownGradSm90 down_grad(Dtype d = Dtype::kBF16, bool add = false) const {
    return {plan(), in(grad_out, s.T, s.D), in(a, R, s.F), to(grad_w2, s.E * s.D, s.F, d), add};
  }
  MoeUpGradSm90 up_grad(Dtype d = Dtype::kBF16, bool add = false) const {
    return {plan(), in(x, s.T, s.D), in(grad_h, R, 2 * s.F), to(grad_w1, s.E * 2 * s.F, s.D, d),
            add};
  }
};

// ---- checks: one warp computes one output as the formula has it, in double.

struct Device {
  const int32_t *offset, *src, *slot, *slot_row, *expert_of_row;
  const float* score;
  const Half *x, *grad_out, *w1, *w2, *h, *a, *y, *grad_h, *grad_rows;
  const void *grad_w1, *grad_w2;
  const float* grad_score;
  int64_t T, D, F, E, K, R;
  bool f32_grads;
};

Device device(const Layer& l, bool f32_grads) {
  return {l.offset.as<int32_t>(),
          l.src.as<int32_t>(),
          l.slot.as<int32_t>(),
          l.slot_row.as<int32_t>(),
          l.expert_of_row.as<int32_t>(),
          l.score.as<float>(),
          l.x.as<Half>(),
          l.grad_out.as<Half>(),
          l.w1.as<Half>(),
          l.w2.as<Half>(),
          l.h.as<Half>(),
          l.a.as<Half>(),
          l.y.as<Half>(),
          l.grad_h.as<Half>(),
          l.grad_rows.as<Half>(),
          l.grad_w1.data,
          l.grad_w2.data,
          l.grad_score.as<float>(),
          l.s.T,
          l.s.D,
          l.s.F,
          l.s.E,
          l.s.K,
          l.R,
          f32_grads};
}

__device__ double warp_sum(double v) {
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  return v;
}
__device__ double dot(const Half* a, int64_t a_step, const Half* b, int64_t b_step, int64_t n) {
  double sum = 0;
  for (int64_t i = threadIdx.x % 32; i < n; i += 32) {
    sum += double{__bfloat162float(a[i * a_step])} * double{__bfloat162float(b[i * b_step])};
  }
  return warp_sum(sum);
}
__device__ double value(Half v) {
  return __bfloat162float(v);
}
__device__ double sigmoid(double g) {
  return 1 / (1 + exp(-g));
}

enum Which { kH, kA, kY, kGradH, kGradScore, kGradRows, kGradW2, kGradW1, kWhich };
const char* kNames[] = {"H", "A", "Y", "dH", "dS", "dXt", "dW2", "dW1"};

struct Pair {
  double got, want;
};

__device__ Pair check_one(const Device& d, Which which, uint64_t i) {
  const float u1 = uniform(i, 100), u2 = uniform(i, 101), u3 = uniform(i, 102);
  const auto pick = [](float u, int64_t n) { return min(static_cast<int64_t>(u * n), n - 1); };
  const int64_t r = pick(u1, d.R), e = which >= kGradW2 ? pick(u1, d.E) : d.expert_of_row[r];
  const int64_t begin = d.offset[e], n = d.offset[e + 1] - begin;
  const Half* w1 = d.w1 + e * 2 * d.F * d.D;
  const Half* w2 = d.w2 + e * d.D * d.F;
  const int64_t f = pick(u2, d.F), c = pick(u3, d.D);
  const double s = d.score[d.slot[r]];
  const Half* h_row = d.h + r * 2 * d.F;
  const double gate = value(h_row[hidden_column(f)]), up = value(h_row[hidden_column(f) + 2]);
  const double p = sigmoid(gate);
  switch (which) {
    case kH: {
      const bool is_up = i & 1;
      const double want = dot(d.x + d.src[r] * d.D, 1, w1 + (f + (is_up ? d.F : 0)) * d.D, 1, d.D);
      return {is_up ? up : gate, want};
    }
    case kA: return {value(d.a[r * d.F + f]), s * gate * p * up};
    case kY: return {value(d.y[r * d.D + c]), dot(d.a + r * d.F, 1, w2 + c * d.F, 1, d.F)};
    case kGradH: {
      const double g = s * dot(d.grad_out + d.src[r] * d.D, 1, w2 + f, d.F, d.D);
      if (i & 1) return {value(d.grad_h[r * 2 * d.F + d.F + f]), g * gate * p};
      return {value(d.grad_h[r * 2 * d.F + f]), g * up * p * (1 + gate * (1 - p))};
    }
    case kGradScore: {
      double sum = 0;
      for (int64_t u = 0; u < d.F; ++u) {
        const double g = value(h_row[hidden_column(u)]), v = value(h_row[hidden_column(u) + 2]);
        sum += dot(d.grad_out + d.src[r] * d.D, 1, w2 + u, d.F, d.D) * g * sigmoid(g) * v;
      }
      return {d.grad_score[d.slot[r]], sum};
    }
    case kGradRows:
      return {value(d.grad_rows[r * d.D + c]),
              dot(d.grad_h + r * 2 * d.F, 1, w1 + c, d.D, 2 * d.F)};
    default: break;
  }
  const bool is_w2 = which == kGradW2;
  const int64_t j = is_w2 ? f : pick(u2, 2 * d.F);
  const int64_t at = is_w2 ? (e * d.D + c) * d.F + f : (e * 2 * d.F + j) * d.D + c;
  const void* grad = is_w2 ? d.grad_w2 : d.grad_w1;
  const double got =
      d.f32_grads ? static_cast<const float*>(grad)[at] : value(static_cast<const Half*>(grad)[at]);
  double sum = 0;
  for (int64_t k = threadIdx.x % 32; k < n; k += 32) {
    const int64_t row = begin + k, token = d.src[row];
    sum += is_w2 ? value(d.grad_out[token * d.D + c]) * value(d.a[row * d.F + f])
                 : value(d.x[token * d.D + c]) * value(d.grad_h[row * 2 * d.F + j]);
  }
  return {got, warp_sum(sum)};
}

// sums: |got - want|^2, |want|^2, the largest |got - want|
__global__ void check_kernel(Device d, Which which, int samples, double* sums) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (i >= samples) return;
  const Pair p = check_one(d, which, i);
  if (threadIdx.x % 32) return;
  const double diff = p.got - p.want;
  atomicAdd(&sums[0], diff * diff);
  atomicAdd(&sums[1], p.want * p.want);
  if (!(fabs(diff) <= 0.02 * fabs(p.want) + 1e-3 * sqrt(sums[1] / (i + 1)))) atomicAdd(&sums[2], 1);
}

int failures = 0;

void check_error(const Layer& l, Which which, bool f32_grads, double limit) {
  const int samples = which == kGradScore ? 300 : 20000;
  Memory sums(24);
  TROUPE_CUDA_CHECK(cudaMemset(sums.data, 0, 24));
  check_kernel<<<(samples * 32 + 255) / 256, 256>>>(device(l, f32_grads), which, samples,
                                                    sums.as<double>());
  double v[3];
  TROUPE_CUDA_CHECK(cudaMemcpy(v, sums.data, 24, cudaMemcpyDeviceToHost));
  const double error = std::sqrt(v[0] / std::max(v[1], 1e-300));
  const bool good = error < limit;
  failures += !good;
  std::printf("  %s%s %.1e%s", kNames[which], f32_grads ? "(f32)" : "", error, good ? "" : " BAD");
}

template <class T>
void check_written(const Layer& l, const Memory& m, int64_t n, const char* name) {
  TROUPE_CUDA_CHECK(cudaMemset(l.counter.data, 0, 8));
  count_bad_kernel<<<512, 256>>>(m.as<T>(), n, l.counter.as<unsigned long long>());
  unsigned long long count = 0;
  TROUPE_CUDA_CHECK(cudaMemcpy(&count, l.counter.data, 8, cudaMemcpyDeviceToHost));
  const bool guard = m.guard_intact();
  if (count || !guard) std::printf("  %s: %llu not finite, guard %d BAD", name, count, guard);
  failures += count || !guard;
}

void check_same(const Layer& l, const Memory& m, const Memory& n, int64_t words, const char* name) {
  TROUPE_CUDA_CHECK(cudaMemset(l.counter.data, 0, 8));
  count_different_kernel<<<512, 256>>>(m.as<uint16_t>(), n.as<uint16_t>(), words,
                                       l.counter.as<unsigned long long>());
  unsigned long long count = 0;
  TROUPE_CUDA_CHECK(cudaMemcpy(&count, l.counter.data, 8, cudaMemcpyDeviceToHost));
  if (count) std::printf("  %s: %llu words differ BAD", name, count);
  failures += count != 0;
}

void check(const Shape& s) {
  Layer l(s);
  std::printf("%s T%ld D%ld F%ld E%ld K%ld:", s.name.c_str(), s.T, s.D, s.F, s.E, s.K);
  std::fflush(stdout);
  const auto step = [&](const char* what, const std::function<void()>& f) {
    f();
    const cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) {
      std::printf("  %s: %s\n", what, cudaGetErrorString(e));
      std::exit(1);
    }
  };
  const int64_t RF = l.R * s.F, weights = s.E * s.D * s.F;
  step("up", [&] { moe_up_sm90_cuda(l.up(), nullptr); });
  check_written<Half>(l, l.h, 2 * RF, "H"), check_written<Half>(l, l.a, RF, "A");
  if (l.R) check_error(l, kH, false, 4e-3), check_error(l, kA, false, 4e-3);
  step("down", [&] { moe_down_sm90_cuda(l.down(), nullptr); });
  check_written<Half>(l, l.y, l.R * s.D, "Y");
  if (l.R) check_error(l, kY, false, 4e-3);
  step("hidden", [&] { moe_hidden_grad_sm90_cuda(l.hidden(), nullptr); });
  check_written<Half>(l, l.grad_h, 2 * RF, "dH"), check_written<Half>(l, l.a_back, RF, "A'");
  check_written<float>(l, l.grad_score, l.R, "dS");
  check_same(l, l.a, l.a_back, RF, "A");
  if (l.R) check_error(l, kGradH, false, 4e-3), check_error(l, kGradScore, false, 2e-3);
  step("rows", [&] { moe_rows_grad_sm90_cuda(l.rows(), nullptr); });
  check_written<Half>(l, l.grad_rows, l.R * s.D, "dXt");
  if (l.R) check_error(l, kGradRows, false, 4e-3);
  step("dW2", [&] { moe_down_grad_sm90_cuda(l.down_grad(), nullptr); });
  check_written<Half>(l, l.grad_w2, weights, "dW2");
  if (l.R) check_error(l, kGradW2, false, 4e-3);
  step("dW1", [&] { moe_up_grad_sm90_cuda(l.up_grad(), nullptr); });
  check_written<Half>(l, l.grad_w1, 2 * weights, "dW1");
  if (l.R) check_error(l, kGradW1, false, 4e-3);
  l.grad_w1.poison(), l.grad_w2.poison();
  step("dW2 f32", [&] { moe_down_grad_sm90_cuda(l.down_grad(Dtype::kF32), nullptr); });
  check_written<float>(l, l.grad_w2, weights, "dW2");
  if (l.R) check_error(l, kGradW2, true, 1e-4);
  step("dW1 f32", [&] { moe_up_grad_sm90_cuda(l.up_grad(Dtype::kF32), nullptr); });
  check_written<float>(l, l.grad_w1, 2 * weights, "dW1");
  if (l.R) check_error(l, kGradW1, true, 1e-4);
  std::printf("\n");
}

// ---- soak: the same inputs again and again must give the same bits

void run_all(const Layer& l) {
  moe_up_sm90_cuda(l.up(), nullptr);
  moe_down_sm90_cuda(l.down(), nullptr);
  moe_hidden_grad_sm90_cuda(l.hidden(), nullptr);
  moe_rows_grad_sm90_cuda(l.rows(), nullptr);
  moe_down_grad_sm90_cuda(l.down_grad(), nullptr);
  moe_up_grad_sm90_cuda(l.up_grad(), nullptr);
}

void soak(const Shape& s, int rounds) {
  Layer first(s), again(s);
  std::printf("%s, %d rounds:", s.name.c_str(), rounds);
  run_all(first);
  const int64_t RF = first.R * s.F, RD = first.R * s.D, weights = s.E * s.D * s.F;
  for (int i = 0; i < rounds; ++i) {
    for (Memory* m : {&again.h, &again.a, &again.y, &again.grad_h, &again.grad_rows}) m->poison();
    run_all(again);
    check_same(first, first.h, again.h, 2 * RF, "H");
    check_same(first, first.a, again.a_back, RF, "A");
    check_same(first, first.y, again.y, RD, "Y");
    check_same(first, first.grad_h, again.grad_h, 2 * RF, "dH");
    check_same(first, first.grad_rows, again.grad_rows, RD, "dXt");
    check_same(first, first.grad_w2, again.grad_w2, weights, "dW2");
    check_same(first, first.grad_w1, again.grad_w1, 2 * weights, "dW1");
    check_same(first, first.grad_score, again.grad_score, 2 * first.R, "dS");
    if (failures > 0) break;
  }
  std::printf(" %s\n", failures ? "BAD" : "same bits");
}

// ---- times

void time_shape(const Shape& s, int repeats) {
  Layer l(s);
  const double f = 2.0 * l.R * s.F * s.D;
  std::vector<Step> steps = {
      {"up", 2 * f, [&] { moe_up_sm90_cuda(l.up(), nullptr); }},
      {"down", f, [&] { moe_down_sm90_cuda(l.down(), nullptr); }},
      {"dH", f, [&] { moe_hidden_grad_sm90_cuda(l.hidden(), nullptr); }},
      {"dXt", 2 * f, [&] { moe_rows_grad_sm90_cuda(l.rows(), nullptr); }},
      {"dW1", 2 * f, [&] { moe_up_grad_sm90_cuda(l.up_grad(), nullptr); }},
      {"dW2", f, [&] { moe_down_grad_sm90_cuda(l.down_grad(), nullptr); }},
  };
  Memory flush(int64_t{256} << 20);
  for (int i = 0; i < repeats; ++i) run_cold(steps, flush, i >= 3);
  double total = 0;
  std::printf("%-10s", s.name.c_str());
  for (const Step& step : steps) {
    const double t = step.median();
    total += t;
    std::printf(" | %s %.3f %.0f", step.name.c_str(), t, step.flops / t * 1e-9);
  }
  const double combine = 2 * 2.0 * (l.R + s.T) * s.D / 4.1e12 * 1e3;
  std::printf(" | six %.3f %.0f | with 2 combines at 4.1 TB/s %.0f\n", total, 9 * f / total * 1e-9,
              9 * f / (total + 2 * combine) * 1e-9);
  std::fflush(stdout);
}

const Shape kCheck[] = {{"tiny", 7, 64, 64, 3, 2},
                        {"one", 1, 128, 128, 8, 1},
                        {"ragged", 1000, 256, 192, 8, 2},
                        {"odd", 129, 320, 448, 3, 2},
                        {"many", 4096, 192, 128, 512, 8},
                        {"empty", 500, 512, 256, 16, 4, 0, false, 5},
                        {"heavy", 4000, 256, 256, 16, 2, 0, true},
                        {"wide", 3000, 1536, 768, 6, 2},
                        {"none", 0, 128, 128, 4, 2}};

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  using namespace troupe;
  const std::string mode = argc > 1 ? argv[1] : "check";
  const std::string only = argc > 2 ? argv[2] : "";
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 13;
  if (mode == "check") {
    for (const Shape& s : kCheck) {
      if (only.empty() || s.name == only) check(s);
    }
    std::printf("%s: %d failures\n", failures ? "FAILED" : "ok", failures);
  } else if (mode == "soak") {
    for (const Shape& s : kCheck) {
      if (s.name == "ragged" || s.name == "wide") soak(s, repeats);
    }
  } else {
    for (const Shape& s : kBenchShapes) {
      if (only.empty() || s.name == only) time_shape(s, repeats);
    }
  }
  return failures != 0;
}
