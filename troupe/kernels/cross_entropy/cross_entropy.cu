#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/cross_entropy/cross_entropy.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"

namespace troupe {
namespace {

constexpr int kThreads = 512;

// What a row needs to know beside its logits.
struct Tokens {
  const int64_t* target;
  const float* weight;  // or null
  int64_t weight_ld, ignore, num_words;
  float z_loss;

  __device__ bool ignored(int64_t t) const { return target[t] == ignore; }
  __device__ bool known(int64_t t) const { return 0 <= target[t] && target[t] < num_words; }
  __device__ float weight_of(int64_t t) const {
    return weight == nullptr ? 1.0f : weight[t * weight_ld];
  }
};

template <class Args>
Tokens tokens_of(const Args& a) {
  return {.target = a.target,
          .weight = static_cast<const float*>(a.weight.data),
          .weight_ld = a.weight.ld,
          .ignore = a.ignore,
          .num_words = a.logits.cols,
          .z_loss = a.z_loss};
}

// sum exp(x - base) of what a thread has seen. base is the maximum, or 0 while all is -inf. A NaN
// is lost in the maximum, and stays in the sum.
struct Running {
  float top = -INFINITY, base = 0, sum = 0;

  __device__ void raise(float to) {
    if (!(to > top)) return;
    sum *= top == -INFINITY ? 0.0f : expf(top - to);
    top = base = to;
  }
};

template <class T, int kN>
__device__ Running scan_row(const T* x, int64_t V) {
  Running running;
  for (int64_t v = int64_t{threadIdx.x} * kN; v < V; v += kThreads * kN) {
    const auto pack = load_pack<kN>(x + v);
    float top = -INFINITY;
    for (int i = 0; i < kN; ++i) top = fmaxf(top, static_cast<float>(pack.v[i]));
    running.raise(top);
    for (int i = 0; i < kN; ++i) running.sum += expf(static_cast<float>(pack.v[i]) - running.base);
  }
  return running;
}

// One block a token; its logits are read once.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(Mat<const T> logits, Tokens tokens, Mat<float> loss, Mat<float> lse) {
  __shared__ float shared[kThreads / kWarpLanes];
  const int64_t t = blockIdx.x;
  if (tokens.ignored(t)) {
    if (threadIdx.x == 0) loss(t, 0) = lse(t, 0) = 0;
    return;
  }
  const Running mine = scan_row<T, kN>(logits.row(t), logits.cols);
  const float top = block_max<kThreads>(mine.top, shared);
  const float base = top == -INFINITY ? 0.0f : top;
  // A thread that met -inf alone has sum 0, or NaN.
  const float scale = mine.top == -INFINITY ? 1.0f : expf(mine.top - base);
  const float log_sum = logf(block_sum<kThreads>(mine.sum * scale, shared));
  if (threadIdx.x != 0) return;
  const float l = base + log_sum;
  const float at_target = tokens.known(t) ? static_cast<float>(logits(t, tokens.target[t])) : NAN;
  lse(t, 0) = l;
  loss(t, 0) = tokens.weight_of(t) * ((base - at_target) + log_sum + tokens.z_loss * l * l);
}

// One block a token; each element is read before it is written, which may be the same place.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_kernel(Mat<const T> logits, Tokens tokens, Mat<const float> lse,
                                  Mat<const float> grad_loss, Mat<T> grad) {
  const int64_t t = blockIdx.x, V = logits.cols;
  const bool ignored = tokens.ignored(t);
  const int64_t target = tokens.target[t];
  const float l = lse(t, 0);
  float scale = grad_loss(t, 0) * tokens.weight_of(t);
  if (!tokens.known(t)) scale = NAN;
  const float softmax_scale = scale * (1 + 2 * tokens.z_loss * l);
  for (int64_t v = int64_t{threadIdx.x} * kN; v < V; v += kThreads * kN) {
    Pack<T, kN> out;
    if (ignored) {
      for (int i = 0; i < kN; ++i) out.v[i] = static_cast<T>(0.0f);
    } else {
      const auto x = load_pack<kN>(logits.row(t) + v);
      for (int i = 0; i < kN; ++i) {
        const float p = expf(static_cast<float>(x.v[i]) - l);
        out.v[i] = static_cast<T>(softmax_scale * p - (v + i == target ? scale : 0.0f));
      }
    }
    store_pack(grad.row(t) + v, out);
  }
}

// f.operator()<T, kN>(): the widest loads that fit.
template <class Body>
void dispatch(const MatRef& logits, bool packed, Body&& body) {
  TROUPE_CHECK(logits.rows <= 0x7fffffff, "tokens", logits.rows);
  dispatch_float(logits.dtype, [&]<class T>() {
    if (packed && logits.cols % kPackOf<T> == 0) {
      return body.template operator()<T, kPackOf<T>>();
    }
    body.template operator()<T, 1>();
  });
}

}  // namespace

void cross_entropy_cuda(const CrossEntropy& a, cudaStream_t stream) {
  validate(a);
  if (a.logits.rows == 0) return;
  dispatch(a.logits, rows_are_packed(a.logits), [&]<class T, int kN>() {
    cross_entropy_kernel<T, kN><<<static_cast<unsigned>(a.logits.rows), kThreads, 0, stream>>>(
        a.logits.as<T>(), tokens_of(a), a.loss.as<float>(), a.lse.as<float>());
  });
  TROUPE_LAUNCH_CHECK(stream);
}

void cross_entropy_backward_cuda(const CrossEntropyBackward& a, cudaStream_t stream) {
  validate(a);
  if (a.logits.rows == 0) return;
  const bool packed = rows_are_packed(a.logits) && rows_are_packed(a.grad_logits.read());
  dispatch(a.logits, packed, [&]<class T, int kN>() {
    cross_entropy_backward_kernel<T, kN>
        <<<static_cast<unsigned>(a.logits.rows), kThreads, 0, stream>>>(
            a.logits.as<T>(), tokens_of(a), a.lse.as<float>(), a.grad_loss.as<float>(),
            a.grad_logits.as<T>());
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
