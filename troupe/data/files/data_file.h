// A file of a data set, read at any place: of this machine, or behind a URL.
//   https://host/train.bin    http://host/train.bin    s3://bucket/corpus/train.bin
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "troupe/data/files/remote_access.h"

namespace troupe {

// Open; several threads may read at once.
class DataFile {
 public:
  virtual ~DataFile() = default;

  virtual const std::string& path() const = 0;  // or the URL, without_secrets()
  virtual int64_t size() const = 0;             // when it was opened
  // Fills `out` from `offset`, with more than one try. E3104 if the file is another by now.
  virtual void read(int64_t offset, std::span<std::byte> out) const = 0;
  // The same of a few bytes here and there, which are not worth keeping what is around them.
  virtual void peek(int64_t offset, std::span<std::byte> out) const { read(offset, out); }
  virtual void require_unchanged() const = 0;  // E3104; of a URL each read sees to it
  // Whether a read may wait for a network: several at once are then faster.
  virtual bool is_far() const { return false; }
};

using DataFilePtr = std::shared_ptr<const DataFile>;

bool is_url(std::string_view path);
DataFilePtr open_data_file(const std::string& path, const RemoteAccess& remote = {});
DataFilePtr find_data_file(const std::string& path, const RemoteAccess& remote = {});  // null: none

// The values that begin at the byte `offset`, in the file's order (little-endian, as all our
// machines are).
template <class T>
void read_array(const DataFile& file, int64_t offset, std::span<T> out) {
  file.read(offset, std::as_writable_bytes(out));
}

}  // namespace troupe
