#include "troupe/data/tokens/token_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>

#include "troupe/core/file/file.h"
#include "troupe/data/tokens/token_file.h"
#include "troupe/data/tokens/token_index.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

enum { kTokens, kLengths, kDocuments, kWeights };
constexpr std::array kPartNames{"tokens", "lengths", "documents", "weights"};
constexpr size_t kBufferBytes = 1 << 20;

std::string parent(const std::string& path) {
  const std::string folder = stdfs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The bytes of each part at that position.
std::array<int64_t, 4> part_bytes(const TokenOutput& output, const TokenCounts& at) {
  return {at.tokens * size_bytes(output.type), 4 * at.sequences, 8 * (at.documents + 1),
          output.weights ? at.tokens : 0};
}

int lock_folder(Fs& fs, const std::string& folder) {
  if (fs.mkdir(folder) != 0 && errno != EEXIST) {
    fail_file(Code::kFileFailed, folder, "make the folder", errno);
  }
  const int fd = fs.open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) fail_file(Code::kFileFailed, folder, "open the folder", errno);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  fs.close(fd);
  fail(Code::kOutputExists, folder, "is in use: another process builds the same output");
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

// A file that only grows, through a buffer. A failed write or sync is never tried again.
struct TokenWriter::Part {
  Part(Fs& disk, std::string name, int64_t size) : fs(disk), path(std::move(name)) {
    fd = fs.open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_APPEND);
    if (fd < 0) fail_file(Code::kFileFailed, path, "make the file", errno);
    // What a killed process wrote after its last sync goes.
    if (::ftruncate(fd, size) != 0) fail_file(Code::kFileFailed, path, "cut the file", errno);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() {
    if (fd >= 0) fs.close(fd);
  }

  void add(std::span<const std::byte> bytes) {
    if (buffer.size() + bytes.size() > kBufferBytes) flush();
    if (bytes.size() >= kBufferBytes) return put(bytes);
    buffer.insert(buffer.end(), bytes.begin(), bytes.end());
  }
  void flush() {
    put(buffer);
    buffer.clear();
  }
  void put(std::span<const std::byte> bytes) {
    const size_t left = write_all(fs, fd, bytes);
    if (left != 0) fail_write("write", static_cast<int64_t>(left));
  }
  void sync() {
    flush();
    if (fs.fsync(fd) != 0) fail_write("sync", 0);
  }
  [[noreturn]] void fail_write(const std::string& operation, int64_t left) const {
    const int error = errno;
    if (error != ENOSPC && error != EDQUOT) fail_file(Code::kFileFailed, path, operation, error);
    fail_file(Code::kNoSpace, path, operation, error,
              "; " + std::to_string(left) + " bytes are needed now, " +
                  std::to_string(free_bytes(parent(path))) + " are free");
  }

  Fs& fs;
  std::string path;
  int fd = -1;
  std::vector<std::byte> buffer;
};

TokenWriter::TokenWriter(Fs& fs, TokenOutput output, std::optional<TokenCounts> from)
    : fs_(fs), output_(std::move(output)), folder_(folder(output_.prefix)) {
  const std::string index = output_.prefix + ".idx";
  if (!output_.replace && file_kind(index) != FileKind::kNothing) {
    fail(Code::kOutputExists, index, "exists; nothing was overwritten");
  }
  for (const char* end : {".bin", ".idx", ".weights"}) require_replaceable(output_.prefix + end);
  lock_ = lock_folder(fs_, folder_);
  if (from && !can_resume(output_, *from)) {  // Asked again, now that nobody else writes there.
    fs_.close(lock_);
    fail(Code::kOutputExists, folder_, "changed while it was opened; run the same command again");
  }
  counts_ = from.value_or(TokenCounts{});
  sequence_begin_ = counts_.tokens;
  try {
    const std::array<int64_t, 4> bytes = part_bytes(output_, counts_);
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (i == kWeights && !output_.weights) continue;
      const int64_t size = i == kDocuments && !from ? 0 : bytes[i];
      parts_[i] = std::make_unique<Part>(fs_, folder_ + '/' + kPartNames[i], size);
    }
    if (!from) part(kDocuments).add(bytes_of(int64_t{0}));
  } catch (...) {
    fs_.close(lock_);  // A constructor that throws runs no destructor.
    throw;
  }
}

TokenWriter::~TokenWriter() {
  if (lock_ >= 0) fs_.close(lock_);
}

bool TokenWriter::can_resume(const TokenOutput& output, const TokenCounts& from) {
  const std::array<int64_t, 4> bytes = part_bytes(output, from);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == kWeights && !output.weights) continue;
    std::error_code error;
    const auto size = stdfs::file_size(folder(output.prefix) + '/' + kPartNames[i], error);
    if (error || static_cast<int64_t>(size) < bytes[i]) return false;
  }
  return true;
}

void TokenWriter::add_tokens(std::span<const int32_t> ids, std::span<const uint8_t> weights) {
  TROUPE_CHECK(!output_.weights || weights.size() == ids.size(), weights.size(), ids.size());
  std::vector<std::byte> bytes(ids.size() * static_cast<size_t>(size_bytes(output_.type)));
  narrow(output_.type, ids, bytes);
  part(kTokens).add(bytes);
  if (output_.weights) part(kWeights).add(std::as_bytes(weights));
  counts_.tokens += std::ssize(ids);
}

void TokenWriter::end_sequence() {
  const int64_t length = counts_.tokens - sequence_begin_;
  if (length > std::numeric_limits<int32_t>::max()) {
    fail(Code::kBadTokenFile, output_.prefix, "a sequence of", length,
         "tokens; the format's limit is 2147483647");
  }
  part(kLengths).add(bytes_of(static_cast<int32_t>(length)));
  sequence_begin_ = counts_.tokens;
  ++counts_.sequences;
}

void TokenWriter::end_document() {
  TROUPE_CHECK(sequence_begin_ == counts_.tokens, "the sequence is still open");
  part(kDocuments).add(bytes_of(counts_.sequences));
  ++counts_.documents;
}

void TokenWriter::sync() {
  for (const auto& p : parts_) {
    if (p) p->sync();
  }
}

// Header, lengths, offsets (their running sum) and documents, one after the other.
void TokenWriter::write_index() {
  Part index(fs_, folder_ + "/idx", 0);
  index.add(std::as_bytes(std::span(kIndexMagic)));
  index.add(bytes_of(uint64_t{1}));
  index.add(bytes_of(output_.type));
  index.add(bytes_of(counts_.sequences));
  index.add(bytes_of(counts_.documents + 1));
  const auto copy = [&](const std::string& path, auto&& each) {
    const InputFile file(path, Code::kFileFailed);
    std::vector<std::byte> block;
    for (int64_t at = 0; at < file.size(); at += std::ssize(block)) {
      block.resize(static_cast<size_t>(std::min<int64_t>(kBufferBytes, file.size() - at)));
      file.read_at(at, block);
      each(block);
    }
  };
  copy(part(kLengths).path, [&](std::span<const std::byte> block) { index.add(block); });
  int64_t offset = 0;
  copy(part(kLengths).path, [&](std::span<const std::byte> block) {
    std::vector<int32_t> lengths(block.size() / 4);
    widen(TokenType::kI32, block, lengths);
    for (const int32_t length : lengths) {
      index.add(bytes_of(offset));
      offset += length * size_bytes(output_.type);
    }
  });
  copy(part(kDocuments).path, [&](std::span<const std::byte> block) { index.add(block); });
  index.sync();
}

void TokenWriter::publish() {
  TROUPE_CHECK(sequence_begin_ == counts_.tokens, "the sequence is still open");
  sync();
  write_index();
  const auto rename = [&](const std::string& from, const std::string& to) {
    if (fs_.rename(from, to) != 0) {
      fail_file(Code::kFileFailed, to, "rename " + from + " to this name", errno);
    }
  };
  const std::string& prefix = output_.prefix;
  const auto remove = [&](const std::string& path) {
    if (fs_.unlink(path) != 0 && errno != ENOENT) {
      fail_file(Code::kFileFailed, path, "remove", errno);
    }
  };
  remove(prefix + ".idx");  // Only with `replace`. Never the old index beside the new tokens.
  remove(prefix + ".weights");
  sync_directory(fs_, parent(prefix));
  rename(part(kTokens).path, prefix + ".bin");
  if (output_.weights) rename(part(kWeights).path, prefix + ".weights");
  sync_directory(fs_, parent(prefix));
  rename(folder_ + "/idx", prefix + ".idx");
  sync_directory(fs_, parent(prefix));
  for (auto& p : parts_) p.reset();
  std::error_code ignored;  // The result is there; what stays of the folder is only untidy.
  stdfs::remove_all(folder_, ignored);
}

}  // namespace troupe
