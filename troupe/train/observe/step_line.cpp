#include "troupe/train/observe/step_line.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace troupe {
namespace {

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
  char buffer[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof(buffer), format, args);
  va_end(args);
  return buffer;
}

bool has(const LogRecord& r, std::string_view name) {
  return std::isfinite(r.scalar(name, std::nan("")));
}

bool is_forced(const LogRecord& r) {
  return r.scalar("forced") > 0;
}

std::string own_line(const LogRecord& r, const Position& now, const Position& run) {
  std::string out = "step " + std::to_string(now.steps) + "/" + std::to_string(run.steps);
  out += text("  loss %.3f  lr %.2e  gnorm %.2f", r.scalar("loss", std::nan("")), r.scalar("lr"),
              r.scalar("grad_norm", std::nan("")));
  if (has(r, "kl")) out += text("  ce %.3f", r.scalar("ce")) + text("  kl %.3f", r.scalar("kl"));
  if (has(r, "rewards/margins")) {
    out += text("  acc %.2f", r.scalar("rewards/accuracies")) +
           text("  margin %.3f", r.scalar("rewards/margins"));
  }
  if (has(r, "moe/aux")) out += text("  aux %.3f", r.scalar("moe/aux"));
  if (has(r, "moe/z")) out += text("  z %.3f", r.scalar("moe/z"));
  if (has(r, "mtp_loss")) out += text("  mtp %.3f", r.scalar("mtp_loss"));
  out += "  tok/s " + short_number(r.scalar("tokens_s"));
  if (has(r, "mfu")) out += text("  mfu %.1f%%", 100 * r.scalar("mfu"));
  if (has(r, "memory_peak")) {
    out += text("  mem %.1f/", r.scalar("memory_peak") * 0x1p-30) +
           text("%.1fG", r.scalar("memory_total") * 0x1p-30);
  }
  if (has(r, "data_wait")) out += text("  data %.1f%%", 100 * r.scalar("data_wait"));
  if (has(r, "moe/load")) {
    out += text("  load %.2f dead %.0f drop %.1f%%", r.scalar("moe/load"), r.scalar("moe/dead"),
                100 * r.scalar("moe/dropped"));
  }
  if (r.scalar("skipped") > 0) out += text("  skip %.0f", r.scalar("skipped"));
  if (has(r, "loss_scale")) out += text("  scale %.0f", r.scalar("loss_scale"));
  const auto left = static_cast<double>(run.steps - now.steps);
  out += "  eta " + short_time(left * r.scalar("step_s"));
  return out + (is_forced(r) ? "  FORCED" : "");
}

// A part of the live line, and how soon it is left out where there is no room: the highest first.
struct LivePart {
  std::string text;
  int rank = 0;
};

std::vector<LivePart> live_parts(const LogRecord& r, const Position& now, const Position& run) {
  const int64_t percent = run.steps > 0 ? 100 * now.steps / run.steps : 0;
  const auto left = static_cast<double>(run.steps - now.steps);
  std::vector<LivePart> out = {
      {"step " + std::to_string(now.steps) + '/' + std::to_string(run.steps), 0},
      {std::to_string(percent) + '%', 9},
      {text("loss %.3f", r.scalar("loss", std::nan(""))), 1},
      {text("lr %.2e", r.scalar("lr")), 8},
      {text("gnorm %.2f", r.scalar("grad_norm", std::nan(""))), 7},
      {"tok/s " + short_number(r.scalar("tokens_s")), 5}};
  if (has(r, "rewards/margins")) {
    out.push_back({text("acc %.2f", r.scalar("rewards/accuracies")), 2});
    out.push_back({text("margin %.3f", r.scalar("rewards/margins")), 3});
  }
  if (has(r, "mfu")) out.push_back({text("mfu %.1f%%", 100 * r.scalar("mfu")), 6});
  if (has(r, "moe/load")) out.push_back({text("load %.2f", r.scalar("moe/load")), 3});
  if (r.scalar("moe/dead") > 0) out.push_back({text("dead %.0f", r.scalar("moe/dead")), 2});
  if (r.scalar("skipped") > 0) out.push_back({text("skip %.0f", r.scalar("skipped")), 2});
  out.push_back({"eta " + short_time(left * r.scalar("step_s")), 4});
  if (is_forced(r)) out.push_back({"FORCED", 0});
  return out;
}

std::string megatron_line(const LogRecord& r, const Position& now, const Position& run) {
  return text(
             " iteration %8lld/%8lld | consumed samples: %12lld | elapsed time per iteration (ms):"
             " %.1f | throughput per GPU (TFLOP/s/GPU): %.1f | learning rate: %.6E |",
             static_cast<long long>(now.steps), static_cast<long long>(run.steps),
             static_cast<long long>(now.samples), 1000 * r.scalar("step_s"), r.scalar("tflops"),
             r.scalar("lr")) +
         text(
             " global batch size: %5.0f | lm loss: %.6E | loss scale: %.1f | grad norm: %.3f |"
             " number of skipped iterations: %3.0f | number of nan iterations: %3.0f |",
             r.scalar("batch"), r.scalar("loss"), r.scalar("loss_scale", 1), r.scalar("grad_norm"),
             r.scalar("skipped"), r.scalar("nonfinite")) +
         (is_forced(r) ? " FORCED routing |" : "");
}

}  // namespace

std::string live_line(const LogRecord& record, const Position& now, const Position& run,
                      int columns) {
  std::vector<LivePart> parts = live_parts(record, now, run);
  for (;;) {
    std::string line;
    for (const LivePart& part : parts) line += (line.empty() ? "" : "  ") + part.text;
    if (std::ssize(line) <= columns || parts.size() == 1) return line;
    parts.erase(std::ranges::max_element(parts, {}, &LivePart::rank));
  }
}

std::string fixed(double value, int digits) {
  return text("%.*f", digits, value);
}

std::string seconds_text(double seconds) {
  char text[32];
  if (seconds < 1) {
    std::snprintf(text, sizeof(text), "%.1f ms", 1e3 * seconds);
  } else {
    std::snprintf(text, sizeof(text), seconds < 100 ? "%.2f s" : "%.0f s", seconds);
  }
  return text;
}

std::string short_number(double value) {
  if (value >= 1e6) return text("%.2fM", value / 1e6);
  return value >= 1e3 ? text("%.1fk", value / 1e3) : text("%.0f", value);
}

std::string short_time(double seconds) {
  const auto s = static_cast<long long>(std::clamp(std::round(seconds), 0.0, 1e12));
  if (s >= 86400) return text("%lldd%02lldh", s / 86400, s / 3600 % 24);
  if (s >= 3600) return text("%lldh%02lldm", s / 3600, s / 60 % 60);
  return s >= 60 ? text("%lldm%02llds", s / 60, s % 60) : text("%llds", s);
}

std::string step_line(LineFormat format, const LogRecord& record, const Position& now,
                      const Position& run) {
  return format == LineFormat::kTroupe ? own_line(record, now, run)
                                       : megatron_line(record, now, run);
}

}  // namespace troupe
