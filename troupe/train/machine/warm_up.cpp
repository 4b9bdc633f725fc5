#include "troupe/train/machine/warm_up.h"

#include "troupe/core/check.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/machine/selftest.h"
#include "troupe/train/step/take_device.h"

namespace troupe {

void warm_up(const Recipe& recipe, int64_t local_rank) {
  const c10::Device device = device_of_rank(recipe, local_rank);
  take_device(device, recipe.run);
  selftest(device, [](const SelfCheck& check) {
    if (!check.ok()) fail(Code::kSlowMachine, "selftest", check.name, "is wrong by", check.error);
  });
}

}  // namespace troupe
