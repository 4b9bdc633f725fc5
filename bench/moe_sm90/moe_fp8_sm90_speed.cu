// Times the kernels of an experts' layer on a GPU, alone, in 8 bits and in bf16 by turns:
// `moe_fp8_sm90_speed [name] [rounds]` prints, for each bench shape, medians of milliseconds and
// TFLOP/s of every kernel, forward and backward, the small ones included, and how far the gradients
// of one are from the other's. In 8 bits there are two sides: dH and A rounded by the product that
// makes them, and by passes over bf16; whose bytes must be equal. Random data, L2 cleared before
// each launch.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/moe_sm90/speed.cuh"
#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/combine/combine.h"
#include "troupe/kernels/fp8/fp8.h"
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

constexpr int kWarmUp = 2;

// sums: |a - b|^2, |b|^2
__global__ void apart_kernel(const Half* a, const Half* b, int64_t n, double* sums) {
  double apart = 0, size = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const double x = __bfloat162float(a[i]), y = __bfloat162float(b[i]);
    apart += (x - y) * (x - y), size += y * y;
  }
  atomicAdd(&sums[0], apart), atomicAdd(&sums[1], size);
}

__global__ void differ_kernel(const uint32_t* a, const uint32_t* b, int64_t n,
                              unsigned long long* count) {
  unsigned long long differ = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    differ += a[i] != b[i];
  }
  atomicAdd(count, differ);
}

// dH and A in 8 bits, and the gradient of the scores.
struct Tiles {
  Memory dH8, sh, dHt, sht, At, sat, dS;
  Tiles(int64_t R, int64_t B, int64_t F)
      : dH8(R * F * 2),
        sh(R * F / 16 + 256),
        dHt(B * 128 * 2 * F),
        sht(B * F / 16),
        At(B * 128 * F),
        sat(B * F / 32),
        dS(R * 4) {}
};

struct Layer {
  Shape s;
  int64_t R, B;  // rows, blocks of 128 of them
  Memory offset, src, slot, slot_row, score;
  Memory x, dO, w1, w2, h, a, y, out, dH, a_back, dXt, dX, dW1, dW2, dS, workspace;  // bf16
  Memory x8, sx, dO8, so, w1_8, w1t, s1, w2_8, w2t, s2, a8, sa;
  Tiles passes, fused;
  Memory h_8, y_8, dXt_8, dX_8, dW1_8, dW2_8;

  explicit Layer(const Shape& z)
      : s(z),
        R(s.T * s.K),
        B(fp8_row_blocks(R, s.E)),
        offset((s.E + 1) * 4),
        src(R * 4),
        slot(R * 4),
        slot_row(R * 4),
        score(R * 4),
        x(s.T * s.D * 2),
        dO(s.T * s.D * 2),
        w1(s.E * 2 * s.F * s.D * 2),
        w2(s.E * s.D * s.F * 2),
        h(R * s.F * 4),
        a(R * s.F * 2),
        y(R * s.D * 2),
        out(s.T * s.D * 2),
        dH(R * s.F * 4),
        a_back(R * s.F * 2),
        dXt(R * s.D * 2),
        dX(s.T * s.D * 2),
        dW1(w1.bytes),
        dW2(w2.bytes),
        dS(R * 4),
        workspace(R * ((s.F + 255) / 256) * 4),
        x8(s.T * s.D),
        sx(s.T * 4),
        dO8(s.T * s.D),
        so(s.T * 4),
        w1_8(w1.bytes / 2),
        w1t(w1.bytes / 2),
        s1(w1.bytes / 2 / 4096),
        w2_8(w2.bytes / 2),
        w2t(w2.bytes / 2),
        s2(w2.bytes / 2 / 4096 + 256),
        a8(R * s.F),
        sa(R * s.F / 32 + 256),
        passes(R, B, s.F),
        fused(R, B, s.F),
        h_8(h.bytes),
        y_8(1),
        dXt_8(1),
        dX_8(dX.bytes),
        dW1_8(dW1.bytes),
        dW2_8(dW2.bytes) {
    route();
    fill(x, 0.2f, 1), fill(dO, 0.2f, 2), fill(w1, 0.02f, 3), fill(w2, 0.02f, 4);
  }

  // K different experts a token, at random.
  void route() {
    std::mt19937 rng(12);
    std::vector<std::vector<int32_t>> slots(s.E);
    std::vector<int> experts(s.E);
    std::iota(experts.begin(), experts.end(), 0);
    std::vector<int32_t> begin{0}, from, of, row(R);
    for (int64_t t = 0; t < s.T; ++t) {
      for (int64_t k = 0; k < s.K; ++k) {
        std::swap(experts[k], experts[k + rng() % (s.E - k)]);
        slots[experts[k]].push_back(static_cast<int32_t>(t * s.K + k));
      }
    }
    for (const auto& list : slots) {
      for (const int32_t i : list) {
        row[i] = static_cast<int32_t>(from.size());
        from.push_back(i / static_cast<int32_t>(s.K)), of.push_back(i);
      }
      begin.push_back(static_cast<int32_t>(from.size()));
    }
    std::vector<float> weight(R);
    for (float& v : weight) v = 0.05f + static_cast<float>(rng() % 1000) / 4000;
    offset.put(begin), src.put(from), slot.put(of), slot_row.put(row), score.put(weight);
  }

  PlanRef plan() const { return plan_of(s, offset, src, slot, slot_row); }
  static Mat<uint8_t> b(const Memory& m, int64_t rows, int64_t cols) {
    return {m.as<uint8_t>(), rows, cols, cols};
  }
  static Mat<const uint8_t> cb(const Memory& m, int64_t rows, int64_t cols) {
    return {m.as<uint8_t>(), rows, cols, cols};
  }
};

std::vector<Step> bf16_steps(const Layer& l) {
  const auto& s = l.s;
  const double f = 2.0 * l.R * s.F * s.D;
  const PlanRef p = l.plan();
  return {
      {"up", 2 * f,
       [=, &l] {
         moe_up_sm90_cuda({p, in(l.x, s.T, s.D), in(l.w1, s.E * 2 * s.F, s.D), l.score.as<float>(),
                           to(l.h, l.R, 2 * s.F), to(l.a, l.R, s.F)},
                          nullptr);
       }},
      {"down", f,
       [=, &l] {
         moe_down_sm90_cuda({p, in(l.a, l.R, s.F), in(l.w2, s.E * s.D, s.F), to(l.y, l.R, s.D)},
                            nullptr);
       }},
      {"combine", 0,
       [=, &l] {
         combine_cuda({.plan = p, .y = in(l.y, l.R, s.D), .out = to(l.out, s.T, s.D)}, nullptr);
       }},
      {"dH", f,
       [=, &l] {
         moe_hidden_grad_sm90_cuda(
             {p, in(l.dO, s.T, s.D), in(l.w2, s.E * s.D, s.F), in(l.h, l.R, 2 * s.F),
              l.score.as<float>(), to(l.dH, l.R, 2 * s.F), to(l.a_back, l.R, s.F), l.dS.as<float>(),
              l.workspace.data},
             nullptr);
       }},
      {"dW2", f,
       [=, &l] {
         moe_down_grad_sm90_cuda(
             {p, in(l.dO, s.T, s.D), in(l.a_back, l.R, s.F), to(l.dW2, s.E * s.D, s.F)}, nullptr);
       }},
      {"dXt", 2 * f,
       [=, &l] {
         moe_rows_grad_sm90_cuda(
             {p, in(l.dH, l.R, 2 * s.F), in(l.w1, s.E * 2 * s.F, s.D), to(l.dXt, l.R, s.D)},
             nullptr);
       }},
      {"combine dX", 0,
       [=, &l] {
         combine_cuda({.plan = p, .y = in(l.dXt, l.R, s.D), .out = to(l.dX, s.T, s.D)}, nullptr);
       }},
      {"dW1", 2 * f,
       [=, &l] {
         moe_up_grad_sm90_cuda(
             {p, in(l.x, s.T, s.D), in(l.dH, l.R, 2 * s.F), to(l.dW1, s.E * 2 * s.F, s.D)},
             nullptr);
       }},
  };
}

QuantizeFp8 rows_in_8_bits(const Layer& l, const Memory& x, const Memory& bytes,
                           const Memory& scales) {
  return {.x = in(x, l.s.T, l.s.D),
          .groups = {},
          .bytes = Layer::b(bytes, l.s.T, l.s.D),
          .scales = {scales.as<float>(), l.s.T, 1, 1}};
}

// Y, dXt and dH share the memory of the bf16 side: its results are compared before.
std::vector<Step> fp8_steps(const Layer& l, bool in_passes) {
  const Tiles& v = in_passes ? l.passes : l.fused;
  const auto& s = l.s;
  const double f = 2.0 * l.R * s.F * s.D;
  const PlanRef p = l.plan();
  const auto b = Layer::b;
  const auto cb = Layer::cb;
  std::vector<Step> steps = {
      {"weights to 8 bits", 0,
       [=, &l] {
         fp8_weight_tiles_cuda(
             {in(l.w1, s.E * 2 * s.F, s.D), 2 * s.F, b(l.w1_8, s.E * 2 * s.F, s.D),
              l.w1t.as<uint8_t>(), l.s1.as<float>()},
             nullptr);
         fp8_weight_tiles_cuda({in(l.w2, s.E * s.D, s.F), s.D, b(l.w2_8, s.E * s.D, s.F),
                                l.w2t.as<uint8_t>(), l.s2.as<float>()},
                               nullptr);
       }},
      {"x to 8 bits", 0,
       [=, &l] { quantize_fp8_cuda(rows_in_8_bits(l, l.x, l.x8, l.sx), nullptr); }},
      {"up", 2 * f,
       [=, &l] {
         moe_up_fp8_sm90_cuda(
             {p, cb(l.x8, s.T, s.D), l.sx.as<float>(), cb(l.w1_8, s.E * 2 * s.F, s.D),
              l.s1.as<float>(), l.score.as<float>(), to(l.h_8, l.R, 2 * s.F), b(l.a8, l.R, s.F),
              l.sa.as<float>()},
             nullptr);
       }},
      {"down", f,
       [=, &l] {
         moe_down_fp8_sm90_cuda({p, cb(l.a8, l.R, s.F), l.sa.as<float>(),
                                 cb(l.w2_8, s.E * s.D, s.F), l.s2.as<float>(), to(l.y, l.R, s.D)},
                                nullptr);
       }},
      {"combine", 0,
       [=, &l] {
         combine_cuda({.plan = p, .y = in(l.y, l.R, s.D), .out = to(l.out, s.T, s.D)}, nullptr);
       }},
      {"dO to 8 bits", 0,
       [=, &l] { quantize_fp8_cuda(rows_in_8_bits(l, l.dO, l.dO8, l.so), nullptr); }},
      {"dH in 8 bits", f,
       [=, &l, &v] {
         moe_hidden_tiles_fp8_sm90_cuda(
             {p, cb(l.dO8, s.T, s.D), l.so.as<float>(), l.sx.as<float>(), cb(l.w2t, s.E * s.F, s.D),
              l.s2.as<float>(), in(l.h_8, l.R, 2 * s.F), l.score.as<float>(),
              b(v.dH8, l.R, 2 * s.F), v.sh.as<float>(), b(v.dHt, 2 * s.F, l.B * 128),
              v.sht.as<float>(), b(v.At, s.F, l.B * 128), v.sat.as<float>(), v.dS.as<float>(),
              l.workspace.data},
             nullptr);
       }},
      {"dH", f,
       [=, &l, &v] {
         moe_hidden_grad_fp8_sm90_cuda(
             {p, cb(l.dO8, s.T, s.D), l.so.as<float>(), cb(l.w2t, s.E * s.F, s.D), l.s2.as<float>(),
              in(l.h_8, l.R, 2 * s.F), l.score.as<float>(), to(l.dH, l.R, 2 * s.F),
              to(l.a_back, l.R, s.F), v.dS.as<float>(), l.workspace.data},
             nullptr);
       }},
      {"A transposed", 0,
       [=, &l, &v] {
         fp8_row_tiles_cuda({in(l.a_back, l.R, s.F),
                             p.expert_offset,
                             s.E,
                             p.row_src,
                             l.so.as<float>(),
                             {},
                             nullptr,
                             v.At.as<uint8_t>(),
                             v.sat.as<float>()},
                            nullptr);
       }},
      {"dW2", f,
       [=, &l, &v] {
         moe_weight_grad_fp8_sm90_cuda({p, cb(l.dO8, s.T, s.D), cb(v.At, s.F, l.B * 128),
                                        v.sat.as<float>(), to(l.dW2_8, s.E * s.D, s.F), false},
                                       nullptr);
       }},
      {"dH to 8 bits", 0,
       [=, &l, &v] {
         fp8_row_tiles_cuda(
             {in(l.dH, l.R, 2 * s.F), p.expert_offset, s.E, p.row_src, l.sx.as<float>(),
              b(v.dH8, l.R, 2 * s.F), v.sh.as<float>(), v.dHt.as<uint8_t>(), v.sht.as<float>()},
             nullptr);
       }},
      {"dW1", 2 * f,
       [=, &l, &v] {
         moe_weight_grad_fp8_sm90_cuda({p, cb(l.x8, s.T, s.D), cb(v.dHt, 2 * s.F, l.B * 128),
                                        v.sht.as<float>(), to(l.dW1_8, s.E * 2 * s.F, s.D), true},
                                       nullptr);
       }},
      {"dXt", 2 * f,
       [=, &l, &v] {
         moe_rows_grad_fp8_sm90_cuda(
             {p, cb(v.dH8, l.R, 2 * s.F), v.sh.as<float>(), cb(l.w1t, s.E * s.D, 2 * s.F),
              l.s1.as<float>(), to(l.dXt, l.R, s.D)},
             nullptr);
       }},
      {"combine dX", 0,
       [=, &l] {
         combine_cuda({.plan = p, .y = in(l.dXt, l.R, s.D), .out = to(l.dX_8, s.T, s.D)}, nullptr);
       }},
  };
  std::erase_if(steps, [=](const Step& step) {
    if (in_passes) return step.name == "dH in 8 bits";
    return step.name == "dH" || step.name == "A transposed" || step.name == "dH to 8 bits";
  });
  return steps;
}

// The sum of the medians, and of them all but the weights'.
double show(const char* side, const std::vector<Step>& steps) {
  double total = 0;
  std::printf("  %s", side);
  for (const Step& step : steps) {
    const double t = step.median();
    total += t;
    std::printf(" | %s %.3f", step.name.c_str(), t);
    if (step.flops > 0) std::printf(" (%.0f)", step.flops / t * 1e-9);
  }
  std::printf(" | all %.3f ms\n", total);
  return total;
}

void apart(const char* name, const Memory& a, const Memory& b) {
  Memory sums(16);
  TROUPE_CUDA_CHECK(cudaMemset(sums.data, 0, 16));
  apart_kernel<<<512, 256>>>(a.as<Half>(), b.as<Half>(), b.bytes / 2, sums.as<double>());
  double v[2];
  TROUPE_CUDA_CHECK(cudaMemcpy(v, sums.data, 16, cudaMemcpyDeviceToHost));
  std::printf("  %s %.4f", name, std::sqrt(v[0] / v[1]));
}

// Whether both sides in 8 bits wrote the same bytes.
bool same_bytes(const Layer& l) {
  const std::pair<const char*, std::pair<const Memory*, const Memory*>> all[] = {
      {"dH", {&l.passes.dH8, &l.fused.dH8}},
      {"its scales", {&l.passes.sh, &l.fused.sh}},
      {"its columns", {&l.passes.dHt, &l.fused.dHt}},
      {"their scales", {&l.passes.sht, &l.fused.sht}},
      {"columns of A", {&l.passes.At, &l.fused.At}},
      {"their scales", {&l.passes.sat, &l.fused.sat}},
      {"dS", {&l.passes.dS, &l.fused.dS}}};
  bool same = true;
  for (const auto& [name, pair] : all) {
    const int64_t n = pair.first->bytes / 4;
    Memory count(8);
    TROUPE_CUDA_CHECK(cudaMemset(count.data, 0, 8));
    differ_kernel<<<512, 256>>>(pair.first->as<uint32_t>(), pair.second->as<uint32_t>(), n,
                                count.as<unsigned long long>());
    unsigned long long differ = 0;
    TROUPE_CUDA_CHECK(cudaMemcpy(&differ, count.data, 8, cudaMemcpyDeviceToHost));
    if (differ > 0) std::printf("  %s: %llu of %ld words DIFFER\n", name, differ, n);
    same = same && differ == 0;
  }
  return same;
}

// What runs back to back, without clearing L2: all sides by turns, half a second each. Without the
// first step in 8 bits, the weights': they are rounded once a step.
void held(const std::vector<Step>& bf16, std::vector<Step> passes, std::vector<Step> fused,
          int rounds) {
  const auto once = [](const std::vector<Step>& steps, int count) {
    cudaEvent_t begin, end;
    TROUPE_CUDA_CHECK(cudaEventCreate(&begin)), TROUPE_CUDA_CHECK(cudaEventCreate(&end));
    TROUPE_CUDA_CHECK(cudaEventRecord(begin));
    for (int i = 0; i < count; ++i) {
      for (const Step& step : steps) step.run();
    }
    TROUPE_CUDA_CHECK(cudaEventRecord(end));
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
    float t = 0;
    TROUPE_CUDA_CHECK(cudaEventElapsedTime(&t, begin, end));
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return t / count;
  };
  passes.erase(passes.begin()), fused.erase(fused.begin());
  const int count = std::max(1, static_cast<int>(500 / once(bf16, 1)));
  std::vector<double> a, b, c;
  for (int i = 0; i < rounds; ++i) {
    a.push_back(once(bf16, count)), b.push_back(once(passes, count));
    c.push_back(once(fused, count));
  }
  for (auto* v : {&a, &b, &c}) std::sort(v->begin(), v->end());
  const double x = a[rounds / 2], y = b[rounds / 2], z = c[rounds / 2];
  std::printf(
      "  held, weights kept: bf16 %.3f ms, fp8 in passes %.3f ms (%.3f times), fp8 %.3f ms "
      "(%.3f times)\n",
      x, y, x / y, z, x / z);
}

void time_shape(const Shape& s, int rounds) {
  Layer l(s);
  Memory flush(int64_t{256} << 20);
  std::vector<Step> bf16 = bf16_steps(l), passes = fp8_steps(l, true), fp8 = fp8_steps(l, false);
  std::printf("%s T%ld D%ld F%ld E%ld K%ld\n", s.name.c_str(), s.T, s.D, s.F, s.E, s.K);
  for (int i = 0; i < rounds + kWarmUp; ++i) {
    run_cold(bf16, flush, i >= kWarmUp);
    run_cold(passes, flush, i >= kWarmUp);
    run_cold(fp8, flush, i >= kWarmUp);
  }
  const double a = show("bf16", bf16);
  show("fp8 in passes", passes);
  const double b = show("fp8", fp8);
  std::printf("  bf16 / fp8 %.3f, with weights kept %.3f\n", a / b, a / (b - fp8[0].median()));
  apart("apart: H", l.h_8, l.h), apart("dX", l.dX_8, l.dX), apart("dW1", l.dW1_8, l.dW1);
  apart("dW2", l.dW2_8, l.dW2);
  std::printf("\n  bytes of both sides in 8 bits: %s\n", same_bytes(l) ? "equal" : "NOT EQUAL");
  held(bf16, passes, fp8, 3);
  std::fflush(stdout);
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  using namespace troupe;
  const std::string only = argc > 1 ? argv[1] : "";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  for (const Shape& s : kBenchShapes) {
    if (only.empty() || only == "all" || s.name == only) time_shape(s, rounds);
  }
  return 0;
}
