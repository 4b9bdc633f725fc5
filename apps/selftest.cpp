// troupe selftest: is this build right on this machine?
#include "troupe/train/machine/selftest.h"

#include <chrono>
#include <iostream>
#include <memory>

#include "apps/print.h"
#include "apps/verbs.h"
#include "troupe/train/forecast/device.h"

namespace troupe {
namespace {

struct SelfTestOptions {
  std::string device = "auto";
  bool quiet = false;
};

void run_selftest(const SelfTestOptions& options, Call& call) {
  DeviceKind kind = DeviceKind::kAuto;
  if (!from_text(options.device, kind)) {
    fail(Code::kBadValue, "--device", "must be", expectation(options.device, kind).wanted, ", not",
         options.device);
  }
  const c10::Device device = device_of(kind);
  const auto begin = std::chrono::steady_clock::now();
  const auto checks = selftest(device, [&](const SelfCheck& check) {
    if (options.quiet && check.ok()) return;
    print_text("%s  %s: %.1e (at most %.0e)\n", check.ok() ? "ok  " : "FAIL", check.name.c_str(),
               check.error, check.limit);
    std::cout << std::flush;
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  size_t failed = 0;
  for (const SelfCheck& check : checks) failed += !check.ok();
  if (failed == 0) {
    print_text("selftest OK: %zu checks on %s, %.1f s\n", checks.size(), device.str().c_str(),
               seconds);
    return;
  }
  print_text("selftest FAILED: %zu of %zu checks on %s. Please report it with the lines above\n",
             failed, checks.size(), device.str().c_str());
  call.code = static_cast<int>(ExitClass::kBug);
}

}  // namespace

void add_selftest(CLI::App& app, Call& call) {
  CLI::App* verb = app.add_subcommand("selftest", "checks this build's mathematics here");
  const auto options = std::make_shared<SelfTestOptions>();
  verb->add_option("--device", options->device, "auto, cpu, cuda");
  verb->add_flag("--quiet", options->quiet, "the last line alone");
  verb->footer("Example: troupe selftest\nReturns 70 where a check fails.");
  verb->callback([options, &call] { run_selftest(*options, call); });
}

}  // namespace troupe
