#include "troupe/data/text/unpacked_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/data/files/retry.h"

namespace troupe {
namespace {

constexpr size_t kBlock = size_t{256} << 10;

// The bytes of a packed file, a block at a time, and what both formats do alike.
class PackedStream : public TextStream {
 public:
  explicit PackedStream(const std::string& path) : file_(path), block_(kBlock) {}

  size_t read(std::span<char> out) final {
    size_t filled = 0;
    while (filled < out.size()) {
      if (in_.empty() && !refill() && at_end()) break;
      filled += unpack(out.subspan(filled));
    }
    unpacked_ += static_cast<int64_t>(filled);
    return filled;
  }
  int64_t consumed(int64_t /*bytes*/) const final { return at_ - std::ssize(in_); }
  void require_unchanged() const final { file_.require_unchanged(Code::kDataChanged); }

 protected:
  // From `in_`, of which it removes what it used, to `out`: how many bytes it wrote. With nothing
  // in `in_` the file has ended.
  virtual size_t unpack(std::span<char> out) = 0;
  // Whether a file may end here: between two members, with nothing left to write.
  virtual bool at_end() const = 0;

  [[noreturn]] void fault(const std::string& what) const {
    fail(Code::kUnreadableData, file_.path(), what, "after", unpacked_, "bytes of its text");
  }

  std::span<const char> in_;

 private:
  bool refill() {
    const auto count = static_cast<size_t>(std::min<int64_t>(kBlock, file_.size() - at_));
    const std::span part = std::span(block_).first(count);
    read_steadily(file_, at_, std::as_writable_bytes(part));
    at_ += std::ssize(part);
    in_ = part;
    return count > 0;
  }

  InputFile file_;
  std::vector<char> block_;
  int64_t at_ = 0, unpacked_ = 0;
};

class GzipStream final : public PackedStream {
 public:
  explicit GzipStream(const std::string& path) : PackedStream(path) {
    constexpr int kWindowBits = 15, kGzip = 16;
    TROUPE_CHECK(inflateInit2(&z_, kWindowBits + kGzip) == Z_OK, "zlib has no memory");
  }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream() override { inflateEnd(&z_); }

 private:
  bool at_end() const override { return between_; }

  size_t unpack(std::span<char> out) override {
    if (between_ && !next_member()) return 0;
    if (in_.empty()) fault("is cut off (gzip)");
    // zlib's interface has no const; it does not write there.
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in_.data()));
    z_.avail_in = static_cast<uInt>(in_.size());
    z_.next_out = reinterpret_cast<Bytef*>(out.data());
    const auto room = static_cast<uInt>(std::min<size_t>(out.size(), size_t{1} << 30));
    z_.avail_out = room;
    const int status = inflate(&z_, Z_NO_FLUSH);
    in_ = in_.last(z_.avail_in);
    if (status == Z_STREAM_END) {
      between_ = true;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fault(std::string("is damaged (gzip: ") + (z_.msg ? z_.msg : "no reason") + ")");
    }
    return room - z_.avail_out;
  }

  // Between members some tools leave zeros, up to the end of a block.
  bool next_member() {
    while (!in_.empty() && in_.front() == '\0') in_ = in_.subspan(1);
    if (in_.empty()) return false;
    inflateReset(&z_);
    between_ = false;
    return true;
  }

  z_stream z_ = {};
  bool between_ = false;  // a member has ended and none has begun
};

class ZstdStream final : public PackedStream {
 public:
  explicit ZstdStream(const std::string& path)
      : PackedStream(path), z_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    TROUPE_CHECK(z_ != nullptr, "Zstandard has no memory");
  }

 private:
  bool at_end() const override { return left_ == 0; }

  size_t unpack(std::span<char> out) override {
    ZSTD_inBuffer in{in_.data(), in_.size(), 0};
    ZSTD_outBuffer into{out.data(), out.size(), 0};
    const bool ended = in_.empty();
    left_ = ZSTD_decompressStream(z_.get(), &into, &in);
    if (ZSTD_isError(left_)) {
      fault(std::string("is damaged (Zstandard: ") + ZSTD_getErrorName(left_) +
            "; a window above 128 MiB, zstd --long, is not read)");
    }
    in_ = in_.subspan(in.pos);
    if (ended && into.pos == 0 && left_ != 0) fault("is cut off (Zstandard)");
    return into.pos;
  }

  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> z_;
  size_t left_ = 0;  // 0: a frame has ended and is written out
};

}  // namespace

std::unique_ptr<TextStream> unpack_gzip(const std::string& path) {
  return std::make_unique<GzipStream>(path);
}

std::unique_ptr<TextStream> unpack_zstd(const std::string& path) {
  return std::make_unique<ZstdStream>(path);
}

}  // namespace troupe
