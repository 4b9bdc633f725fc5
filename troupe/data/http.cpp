#include "troupe/data/http.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// The functions that are used, out of the library that is there.
struct Curl {
  decltype(&curl_easy_init) init;
  decltype(&curl_easy_setopt) set;
  decltype(&curl_easy_perform) perform;
  decltype(&curl_easy_getinfo) info;
  decltype(&curl_easy_strerror) text;
  decltype(&curl_easy_cleanup) cleanup;
  decltype(&curl_slist_append) append;
  decltype(&curl_slist_free_all) free_list;
};

const Curl& curl() {
  static const Curl functions = [] {
    void* const library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      fail(Code::kUnreadableData, "libcurl.so.4",
           "reads what is behind URLs and is not here (Debian, Ubuntu: apt install libcurl4):",
           dlerror());
    }
    const auto get = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      TROUPE_CHECK(function != nullptr, name);
    };
    decltype(&curl_global_init) global = nullptr;
    get(global, "curl_global_init");
    Curl out{};
    get(out.init, "curl_easy_init");
    get(out.set, "curl_easy_setopt");
    get(out.perform, "curl_easy_perform");
    get(out.info, "curl_easy_getinfo");
    get(out.text, "curl_easy_strerror");
    get(out.cleanup, "curl_easy_cleanup");
    get(out.append, "curl_slist_append");
    get(out.free_list, "curl_slist_free_all");
    global(CURL_GLOBAL_DEFAULT);
    return out;
  }();
  return functions;
}

std::string variable(const char* name, const std::string& otherwise = "") {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// Of a key everything but letters, digits and -._~/ as %XX.
std::string escaped(const std::string& key) {
  constexpr const char* kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::strchr("-._~/", c) != nullptr) {
      out += c;
    } else {
      out.append({'%', kHex[byte >> 4], kHex[byte & 15]});
    }
  }
  return out;
}

// What is asked for, and how it is signed.
struct Target {
  std::string url;
  std::string key = {}, secret = {}, token = {}, signature = {};  // empty: unsigned
};

Target target_of(const std::string& url) {
  if (!url.starts_with("s3://")) return {.url = url};
  const size_t slash = url.find('/', 5);
  if (slash == std::string::npos || slash == 5 || slash + 1 == url.size()) {
    fail(Code::kUnreadableData, url, "must be s3://BUCKET/KEY");
  }
  const std::string bucket = url.substr(5, slash - 5), key = escaped(url.substr(slash + 1));
  const std::string region = variable("AWS_REGION", variable("AWS_DEFAULT_REGION", "us-east-1"));
  std::string endpoint = variable("AWS_ENDPOINT_URL");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  Target out;
  out.url = endpoint.empty() ? "https://" + bucket + ".s3." + region + ".amazonaws.com/" + key
                             : endpoint + '/' + bucket + '/' + key;
  out.key = variable("AWS_ACCESS_KEY_ID");
  out.secret = variable("AWS_SECRET_ACCESS_KEY");
  out.token = variable("AWS_SESSION_TOKEN");
  if (!out.key.empty()) out.signature = "aws:amz:" + region + ":s3";
  return out;
}

// What came back.
struct Answer {
  std::span<std::byte> out;  // to be filled with the range's bytes

  CURLcode fault = CURLE_OK;
  int64_t status = 0;
  int64_t size = -1;                        // of the whole object
  std::string version = {}, modified = {};  // ETag, Last-Modified
  std::string error = {};                   // the beginning of what a server says of one
  size_t filled = 0;
  bool too_long = false;

  bool may_pass() const {  // another try may succeed
    return fault != CURLE_OK || status == 408 || status == 429 || status >= 500;
  }
};

size_t on_body(const char* data, size_t one, size_t count, void* user) {
  Answer& answer = *static_cast<Answer*>(user);
  const size_t bytes = one * count;
  if (answer.status != 206) {
    answer.error.append(data, std::min(bytes, 300 - std::min<size_t>(300, answer.error.size())));
    return answer.status == 200 ? 0 : bytes;  // a whole object was not asked for
  }
  answer.too_long = bytes > answer.out.size() - answer.filled;
  if (answer.too_long) return 0;
  std::memcpy(answer.out.data() + answer.filled, data, bytes);
  answer.filled += bytes;
  return bytes;
}

size_t on_header(const char* data, size_t one, size_t count, void* user) {
  Answer& answer = *static_cast<Answer*>(user);
  std::string line(data, one * count);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
    line.pop_back();
  }
  if (line.starts_with("HTTP/")) {  // of the last of several answers, as redirections make
    const std::span<std::byte> out = answer.out;
    answer = {};
    answer.out = out;
    const size_t space = line.find(' ');
    if (space != std::string::npos) answer.status = std::atoll(line.c_str() + space);
    return one * count;
  }
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return one * count;
  std::string name = line.substr(0, colon);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  const size_t first = line.find_first_not_of(" \t", colon + 1);
  const std::string value = first == std::string::npos ? "" : line.substr(first);
  if (name == "etag") answer.version = value;
  if (name == "last-modified") answer.modified = value;
  if (name == "content-range") {  // "bytes 0-0/1234"
    const size_t slash = value.find('/');
    const char* const begin =
        value.data() + (slash == std::string::npos ? value.size() : slash + 1);
    std::from_chars(begin, value.data() + value.size(), answer.size);
  }
  return one * count;
}

}  // namespace

// Handles, each with a connection that stays open, as many as were in use at once.
struct HttpObject::Connections {
  explicit Connections(const std::string& url) : target(target_of(url)), place(shown_url(url)) {}
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;
  ~Connections() {
    for (CURL* handle : idle) curl().cleanup(handle);
  }

  CURL* take() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return curl().init();
    CURL* const handle = idle.back();
    idle.pop_back();
    return handle;
  }
  void put_back(CURL* handle) {
    const std::lock_guard lock(mutex);
    idle.push_back(handle);
  }

  Answer ask(int64_t offset, std::span<std::byte> out);
  // ... until it is no passing fault; with the last one's reason.
  Answer ask_steadily(int64_t offset, std::span<std::byte> out);
  std::string reason(const Answer& answer) const;

  const Target target;
  const std::string place;
  std::mutex mutex;
  std::vector<CURL*> idle;
};

Answer HttpObject::Connections::ask(int64_t offset, std::span<std::byte> out) {
  const Curl& c = curl();
  Answer answer{.out = out};
  CURL* const handle = take();
  TROUPE_CHECK(handle != nullptr, place);
  const std::string range =
      std::to_string(offset) + '-' + std::to_string(offset + std::ssize(out) - 1);
  curl_slist* headers = nullptr;
  c.set(handle, CURLOPT_URL, target.url.c_str());
  c.set(handle, CURLOPT_RANGE, range.c_str());
  c.set(handle, CURLOPT_WRITEFUNCTION, &on_body);
  c.set(handle, CURLOPT_WRITEDATA, &answer);
  c.set(handle, CURLOPT_HEADERFUNCTION, &on_header);
  c.set(handle, CURLOPT_HEADERDATA, &answer);
  c.set(handle, CURLOPT_NOSIGNAL, 1L);
  c.set(handle, CURLOPT_FOLLOWLOCATION, 1L);
  c.set(handle, CURLOPT_MAXREDIRS, 5L);
  c.set(handle, CURLOPT_CONNECTTIMEOUT, 10L);
  c.set(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);  // a byte a second for
  c.set(handle, CURLOPT_LOW_SPEED_TIME, 30L);  // so many seconds, or it stands still
  c.set(handle, CURLOPT_USERAGENT, "troupe");
  if (!target.signature.empty()) {
    c.set(handle, CURLOPT_AWS_SIGV4, target.signature.c_str());
    c.set(handle, CURLOPT_USERNAME, target.key.c_str());
    c.set(handle, CURLOPT_PASSWORD, target.secret.c_str());
    // Of a request without a body, which the signature covers.
    headers = c.append(headers,
                       "x-amz-content-sha256: "
                       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    if (!target.token.empty()) {
      headers = c.append(headers, ("x-amz-security-token: " + target.token).c_str());
    }
  }
  c.set(handle, CURLOPT_HTTPHEADER, headers);
  answer.fault = c.perform(handle);
  c.set(handle, CURLOPT_HTTPHEADER, nullptr);
  c.free_list(headers);
  put_back(handle);
  if (answer.status == 206 && answer.fault == CURLE_OK && answer.filled < out.size()) {
    answer.fault = CURLE_PARTIAL_FILE;
  }
  if (answer.version.empty()) answer.version = answer.modified;
  return answer;
}

Answer HttpObject::Connections::ask_steadily(int64_t offset, std::span<std::byte> out) {
  using std::chrono::milliseconds;
  for (const milliseconds pause :
       {milliseconds(200), milliseconds(1000), milliseconds(5000), milliseconds(20000)}) {
    Answer answer = ask(offset, out);
    const bool refused = answer.status == 200 || answer.too_long;
    if (refused || !answer.may_pass()) return answer;
    std::this_thread::sleep_for(pause);
  }
  return ask(offset, out);
}

std::string HttpObject::Connections::reason(const Answer& answer) const {
  if (answer.status == 200 || answer.too_long) {
    return "the server sends more than the range that it is asked for; data is read in ranges";
  }
  if (answer.fault != CURLE_OK) {
    return std::string("cannot be read: ") + curl().text(answer.fault);
  }
  std::string out = "the server says " + std::to_string(answer.status);
  if (answer.status == 403 || answer.status == 401) {
    out += target.signature.empty()
               ? " (not allowed; nothing was signed: for s3:// set AWS_ACCESS_KEY_ID and "
                 "AWS_SECRET_ACCESS_KEY)"
               : " (not allowed to " + target.key + ")";
  }
  std::string error = answer.error;
  std::replace_if(
      error.begin(), error.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return error.empty() ? out : out + ": " + error;
}

std::optional<HttpObject> HttpObject::find(const std::string& url) {
  HttpObject object(url);
  std::byte first{};
  const Answer answer = object.connections_->ask_steadily(0, {&first, 1});
  if (answer.status == 404) return {};
  if (answer.status == 416) return object;  // no first byte: it is empty
  if (answer.fault != CURLE_OK || answer.status != 206 || answer.size < 0) {
    fail(Code::kUnreadableData, object.connections_->place, object.connections_->reason(answer));
  }
  object.size_ = answer.size;
  object.version_ = answer.version;
  return object;
}

HttpObject::HttpObject(const std::string& url) : connections_(std::make_shared<Connections>(url)) {}

void HttpObject::read(int64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  TROUPE_CHECK(offset >= 0 && offset + std::ssize(out) <= size_, connections_->place, offset,
               out.size(), size_);
  const Answer answer = connections_->ask_steadily(offset, out);
  const bool other = answer.status == 404 || answer.status == 416 ||
                     (answer.status == 206 && (answer.version != version_ || answer.size != size_));
  if (other) {
    fail(Code::kDataChanged, connections_->place,
         "is not what it was when it was opened: it was version", version_, "of", size_,
         "bytes, now it is", answer.status == 206 ? answer.version : "gone");
  }
  if (answer.fault != CURLE_OK || answer.status != 206) {
    fail(Code::kUnreadableData, connections_->place, "at byte", offset,
         connections_->reason(answer));
  }
}

std::string shown_url(const std::string& url) {
  const size_t query = url.find('?');
  std::string out = url.substr(0, query);
  const size_t host = out.find("://"), at = out.find('@', host + 3);
  if (host != std::string::npos && at != std::string::npos && at < out.find('/', host + 3)) {
    out.erase(host + 3, at - host - 2);
  }
  return out;
}

}  // namespace troupe
