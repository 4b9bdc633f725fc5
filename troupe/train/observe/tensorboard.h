// TensorBoard event files, in TFRecord framing:
//   u64 length, u32 masked crc32c(length), event, u32 masked crc32c(event)
// A reader gives up on a file at its first torn record, so every start writes a new file. A failed
// write ends the file in the same way: the next event opens another one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/train/observe/append_file.h"

namespace troupe {

uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);  // rotated and shifted, as TFRecord stores it

namespace tensorboard {

// The events' bytes, framed. `time` in seconds since 1970.
std::string framed(std::string_view event);
std::string version_event(double time);
std::string session_start_event(double time, int64_t step);
std::string scalars_event(double time, int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars);
std::string text_event(double time, int64_t step, std::string_view tag, std::string_view text);
// One bucket a value i: its count at position i, as for an expert's load.
std::string counts_event(double time, int64_t step, std::string_view tag,
                         std::span<const double> counts);

}  // namespace tensorboard

class TensorBoard {
 public:
  // `folder`/events.out.tfevents.<seconds>.<host>.<pid>.<n>. With resumed_step >= 0 readers drop
  // what earlier files say of that step and later ones.
  TensorBoard(std::string folder, int64_t resumed_step, Log log);

  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  void text(int64_t step, std::string_view tag, std::string_view text);
  void counts(int64_t step, std::string_view tag, std::span<const double> counts);
  const std::string& path() const { return file_->path(); }

 private:
  void open(int64_t resumed_step);
  void write(int64_t step, std::string_view bytes);

  std::string folder_;
  Log log_;
  int files_ = 0;
  std::unique_ptr<AppendFile> file_;
};

}  // namespace troupe
