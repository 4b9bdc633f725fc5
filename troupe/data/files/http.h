// An object behind http://, https:// or s3://BUCKET/KEY, asked for in ranges of bytes.
//
// s3:// is signed (AWS Signature 4) with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, of a role,
// AWS_SESSION_TOKEN; without them it is asked for as anybody may. AWS_REGION says where the bucket
// is (us-east-1), AWS_ENDPOINT_URL names another store of that interface. These, and the user and
// password of an address, go to the scheme, host and port of that address alone, not where it
// redirects to. From https nothing redirects to http. AWS_CA_BUNDLE, else SSL_CERT_FILE, names the
// authorities whose certificates are taken, in place of the system's.
//
// No server holds a run up: a try that gets less than 1 KiB a second for `timeout`, or that long
// and a second for each 4 KiB, has failed, as has one whose answer is longer than it may be.
//
// libcurl.so.4 does the talking. It is opened when the first object is, so that nothing else needs
// it: E3001 where it is not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "troupe/data/files/remote_access.h"

namespace troupe {

class HttpObject {
 public:
  // Asks for the first byte, which tells size and version. Nothing: there is no such object (404).
  // E3001 with what the server said, or that it cannot be reached.
  static std::optional<HttpObject> find(const std::string& url, const RemoteAccess& access = {});

  int64_t size() const { return size_; }
  // What the server calls this version of it (ETag, or Last-Modified); empty: it does not say.
  const std::string& version() const { return version_; }
  // The whole address of the request, with user and query but without its signature: two objects of
  // one identity and version are one object. Holds secrets: not to be shown.
  std::string identity() const;

  // Five tries, the last some 26 s after the first failed. E3104, at once, where the version is
  // another. Several threads may read at once.
  void read(int64_t offset, std::span<std::byte> out) const;

 private:
  struct Connections;
  HttpObject(const std::string& url, const RemoteAccess& access);

  std::shared_ptr<Connections> connections_;
  int64_t size_ = 0;
  std::string version_;
};

}  // namespace troupe
