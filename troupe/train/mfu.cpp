#include "troupe/train/mfu.h"

#include <array>
#include <utility>

namespace troupe {

std::optional<double> peak_flops(std::string_view device_name) {
  // The first that the name contains; the narrower names come first.
  constexpr std::array<std::pair<std::string_view, double>, 7> kTera = {{{"H100 PCIe", 756},
                                                                         {"H100 NVL", 835},
                                                                         {"H100", 989.5},
                                                                         {"H200", 989.5},
                                                                         {"A100", 312},
                                                                         {"B200", 2250},
                                                                         {"L40S", 362}}};
  for (const auto& [name, tera] : kTera) {
    if (device_name.find(name) != std::string_view::npos) return tera * 1e12;
  }
  return std::nullopt;
}

}  // namespace troupe
