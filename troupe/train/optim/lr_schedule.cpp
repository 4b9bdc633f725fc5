#include "troupe/train/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "troupe/core/check.h"

namespace troupe {
namespace {

double cosine(double x) {
  return (1 + std::cos(std::numbers::pi * x)) / 2;
}

double tail(Tail form, double q) {
  switch (form) {
    case Tail::kLinear: return 1 - q;
    case Tail::kCosine: return cosine(q);
    case Tail::kExponential: return 2 * std::exp2(-q) - 1;
    case Tail::kSqrt: return 1 - std::sqrt(q);
  }
  return 0;
}

// All spans of a schedule in one unit.
struct Lengths {
  Span::Unit unit = Span::Unit::kSteps;
  int64_t warmup = 0, end = 0, decay = 0;
};

template <class C>
std::vector<Span> spans_of(const C& c) {
  std::vector<Span> out = {c.warmup};
  if constexpr (std::is_base_of_v<DecayingLr, C>) {
    if (c.end) out.push_back(*c.end);
  }
  if constexpr (std::is_same_v<C, WsdLr>) out.push_back(c.decay);
  return out;
}

Span::Unit unit_of(const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    if (span.unit != Span::Unit::kPercent && span.value != 0) return span.unit;
  }
  return Span::Unit::kSteps;
}

template <class C>
Lengths lengths_of(const C& c, const Position& run) {
  Lengths out{.unit = unit_of(spans_of(c))};
  out.warmup = resolved(c.warmup, out.unit, run);
  out.end = in_unit(run, out.unit);
  if constexpr (std::is_base_of_v<DecayingLr, C>) {
    if (c.end) out.end = resolved(*c.end, out.unit, run);
  }
  if constexpr (std::is_same_v<C, WsdLr>) out.decay = resolved(c.decay, out.unit, run);
  return out;
}

double after_warmup(const ConstantLr&, const Lengths&, int64_t) {
  return 1;
}

template <class C>
double after_warmup(const C& c, const Lengths& l, int64_t n) {
  if (n > l.end) return c.min;
  if constexpr (std::is_same_v<C, InverseSqrtLr>) {
    const auto w = static_cast<double>(std::max<int64_t>(l.warmup, 1));
    return std::max(c.min, std::sqrt(w / static_cast<double>(std::max<int64_t>(n, 1))));
  } else if constexpr (std::is_same_v<C, WsdLr>) {
    const int64_t start = l.end - l.decay;
    if (n <= start) return 1;
    return c.min + (1 - c.min) *
                       tail(c.tail, static_cast<double>(n - start) / static_cast<double>(l.decay));
  } else {
    const double r = static_cast<double>(n - l.warmup) /
                     static_cast<double>(std::max<int64_t>(l.end - l.warmup, 1));
    return c.min + (1 - c.min) * (std::is_same_v<C, CosineLr> ? cosine(r) : 1 - r);
  }
}

}  // namespace

std::vector<std::string> lr_faults(const LrConfig& config, const Position& run) {
  return std::visit(
      [&](const auto& c) -> std::vector<std::string> {
        const std::vector<Span> spans = spans_of(c);
        const Span::Unit unit = unit_of(spans);
        for (const Span& span : spans) {
          if (span.unit == Span::Unit::kTime) {
            return {to_text(span) +
                    ": the schedule of a run cannot be in time, which is not the "
                    "same twice; give steps, samples or tokens"};
          }
          if (span.unit != Span::Unit::kPercent && span.value != 0 && span.unit != unit) {
            return {to_text(span) + " is in another unit than " + to_text(spans[0])};
          }
        }
        const Lengths l = lengths_of(c, run);
        std::vector<std::string> out;
        if (l.warmup > l.end) {
          out.push_back("warmup " + std::to_string(l.warmup) + " is longer than the schedule, " +
                        std::to_string(l.end));
        } else if (l.decay > l.end - l.warmup) {
          out.push_back("decay " + std::to_string(l.decay) + " is longer than the " +
                        std::to_string(l.end - l.warmup) + " after the warm-up");
        }
        if (!(0 <= c.warmup_from && c.warmup_from <= 1)) {
          out.push_back("warmup_from " + to_text(c.warmup_from) +
                        " is a fraction of the largest rate, 0 to 1");
        }
        if constexpr (std::is_base_of_v<DecayingLr, std::decay_t<decltype(c)>>) {
          if (!(0 <= c.min && c.min <= 1)) {
            out.push_back("min " + to_text(c.min) + " is a fraction of the largest rate, 0 to 1");
          }
        }
        return out;
      },
      config);
}

double lr_factor(const LrConfig& config, const Position& before, const Position& after,
                 const Position& run) {
  return std::visit(
      [&](const auto& c) {
        const Lengths l = lengths_of(c, run);
        const int64_t n = in_unit(before, l.unit), next = in_unit(after, l.unit);
        const auto warm = [&](int64_t at) {
          const double part = static_cast<double>(at) / static_cast<double>(l.warmup);
          return c.warmup_from + (1 - c.warmup_from) * std::min(1.0, part);
        };
        if (c.megatron && l.warmup > 0 && n <= l.warmup) return warm(n);
        if (!c.megatron && n < l.warmup) return warm(next);
        return after_warmup(c, l, n);
      },
      config);
}

double ramped(double start, double end, RampForm form, int64_t step, int64_t steps) {
  if (step >= steps) return end;
  const double r = static_cast<double>(step) / static_cast<double>(steps);
  return start + (end - start) * (form == RampForm::kLinear ? r : cosine(1 - r));
}

std::vector<std::string> ramp_faults(const BatchRamp& ramp, int64_t full, int64_t micro) {
  std::vector<std::string> out;
  const std::string whole = "the global batch " + std::to_string(full);
  if (!ramp.stages.empty()) {
    if (ramp.start != 0 || ramp.increment != 0 || ramp.samples != 0) {
      out.emplace_back("has stages, or start, increment and samples; not both");
    }
    int64_t before = 0;
    for (const BatchStage& stage : ramp.stages) {
      if (stage.batch <= 0 || stage.until <= before) {
        out.push_back("a stage of batch " + std::to_string(stage.batch) + " until sample " +
                      std::to_string(stage.until) + ": batches are positive, and each stage ends" +
                      " after the one before it, at " + std::to_string(before));
      }
      before = stage.until;
    }
  } else if (ramp.start <= 0 || ramp.increment <= 0 || ramp.samples <= 0 || ramp.start >= full ||
             (full - ramp.start) % ramp.increment != 0) {
    out.push_back("goes from start " + std::to_string(ramp.start) + " in whole increments of " +
                  std::to_string(ramp.increment) + " to " + whole + ": it cannot");
  }
  if (out.empty()) {
    // Each step of a ramp is gone through, and looks at all stages.
    constexpr double kMost = 1e7;
    int64_t least = ramp.stages.empty() ? ramp.start : ramp.stages.front().batch;
    for (const BatchStage& stage : ramp.stages) least = std::min(least, stage.batch);
    const auto end = static_cast<double>(ramp_end(ramp));
    const auto stages = static_cast<double>(std::max<size_t>(1, ramp.stages.size()));
    const double work = end / static_cast<double>(least) * stages;
    const double product = end * static_cast<double>(full);
    if (work > kMost || product > static_cast<double>(int64_t{1} << 62)) {
      out.push_back("ends at sample " + std::to_string(ramp_end(ramp)) + ", after about " +
                    to_text(end / static_cast<double>(least)) +
                    " steps: that is longer than a ramp can be");
    }
  }
  if (out.empty() && micro > 0 && !divides_ramp(ramp, micro)) {
    out.push_back("has batches that are no multiples of micro_batch " + std::to_string(micro));
  }
  return out;
}

int64_t ramp_end(const BatchRamp& ramp) {
  return ramp.stages.empty() ? ramp.samples : ramp.stages.back().until;
}

bool divides_ramp(const std::optional<BatchRamp>& ramp, int64_t n) {
  if (!ramp) return true;
  const auto fits = [n](const BatchStage& stage) { return stage.batch % n == 0; };
  if (!ramp->stages.empty()) return std::ranges::all_of(ramp->stages, fits);
  return ramp->start % n == 0 && ramp->increment % n == 0;
}

int64_t batch_at(const std::optional<BatchRamp>& ramp, int64_t full, int64_t samples) {
  if (!ramp || samples >= ramp_end(*ramp)) return full;
  for (const BatchStage& stage : ramp->stages) {
    if (samples < stage.until) return stage.batch;
  }
  const int64_t increments = (full - ramp->start) / ramp->increment;
  const int64_t passed = samples * increments / ramp->samples;
  return std::min(full, ramp->start + ramp->increment * passed);
}

Position run_of(const std::optional<BatchRamp>& ramp, int64_t full, int64_t sequence,
                int64_t tokens) {
  Position out;
  const int64_t samples = (tokens + sequence - 1) / sequence;
  while (ramp && out.samples < std::min(samples, ramp_end(*ramp))) {
    out.samples += batch_at(ramp, full, out.samples);
    ++out.steps;
  }
  const int64_t rest = (std::max<int64_t>(samples - out.samples, 0) + full - 1) / full;
  out.steps += rest;
  out.samples += rest * full;
  out.tokens = out.samples * sequence;
  return out;
}

}  // namespace troupe
