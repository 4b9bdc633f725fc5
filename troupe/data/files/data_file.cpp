#include "troupe/data/files/data_file.h"

#include <utility>

#include "troupe/core/file/file.h"
#include "troupe/core/file/secrets.h"
#include "troupe/data/files/remote_file.h"
#include "troupe/data/files/retry.h"

namespace troupe {
namespace {

class LocalFile : public DataFile {
 public:
  explicit LocalFile(const std::string& path) : file_(path) {}
  const std::string& path() const override { return file_.path(); }
  int64_t size() const override { return file_.size(); }
  void read(int64_t offset, std::span<std::byte> out) const override {
    read_steadily(file_, offset, out);
  }
  void require_unchanged() const override { file_.require_unchanged(Code::kDataChanged); }

 private:
  InputFile file_;
};

}  // namespace

bool is_url(std::string_view path) {
  return path.starts_with("http://") || path.starts_with("https://") || path.starts_with("s3://");
}

DataFilePtr find_data_file(const std::string& path, const RemoteAccess& remote) {
  if (is_url(path)) return find_remote_file(path, remote);
  return is_there(path) ? std::make_shared<LocalFile>(path) : nullptr;
}

DataFilePtr open_data_file(const std::string& path, const RemoteAccess& remote) {
  if (!is_url(path)) return std::make_shared<LocalFile>(path);
  DataFilePtr file = find_remote_file(path, remote);
  if (!file) fail(Code::kUnreadableData, without_secrets(path), "is not there (404)");
  return file;
}

}  // namespace troupe
