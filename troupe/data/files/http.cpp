#include "troupe/data/files/http.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/text/text.h"
#include "troupe/data/files/http_header.h"

namespace troupe {
namespace {

constexpr int64_t kSlowest = 1 << 10;       // bytes a second, over the time of data.read_timeout
constexpr int64_t kSlowestOfAll = 4 << 10;  // the same over a whole answer
constexpr size_t kMostHeaders = 64 << 10;   // bytes of all header lines of an answer
constexpr size_t kMostError = 64 << 10;     // ... of what comes in place of the range
constexpr size_t kShownError = 300;         // ... of it in a message
constexpr int64_t kMostSize = int64_t{1} << 50;
constexpr int kMostRedirects = 5;

// The functions that are used, out of the library that is there.
struct Curl {
  decltype(&curl_easy_init) init;
  decltype(&curl_easy_reset) reset;
  decltype(&curl_easy_setopt) set;
  decltype(&curl_easy_perform) perform;
  decltype(&curl_easy_getinfo) info;
  decltype(&curl_easy_strerror) text;
  decltype(&curl_easy_cleanup) cleanup;
  decltype(&curl_slist_append) append;
  decltype(&curl_slist_free_all) free_list;
  decltype(&curl_url) url;
  decltype(&curl_url_set) url_set;
  decltype(&curl_url_get) url_get;
  decltype(&curl_url_cleanup) url_cleanup;
  decltype(&curl_free) free;
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
    get(out.reset, "curl_easy_reset");
    get(out.set, "curl_easy_setopt");
    get(out.perform, "curl_easy_perform");
    get(out.info, "curl_easy_getinfo");
    get(out.text, "curl_easy_strerror");
    get(out.cleanup, "curl_easy_cleanup");
    get(out.append, "curl_slist_append");
    get(out.free_list, "curl_slist_free_all");
    get(out.url, "curl_url");
    get(out.url_set, "curl_url_set");
    get(out.url_get, "curl_url_get");
    get(out.url_cleanup, "curl_url_cleanup");
    get(out.free, "curl_free");
    global(CURL_GLOBAL_DEFAULT);
    return out;
  }();
  return functions;
}

std::string variable(const char* name, const std::string& otherwise = "") {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// The key with everything but letters, digits and -._~/ as %XX.
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

// An address as libcurl reads it, so that no two readers make two hosts of it.
struct Address {
  std::string scheme = {}, host = {}, port = {};  // empty scheme: it cannot be read
  std::string user = {}, password = {};
  std::string url = {};  // without those two

  bool same_origin(const Address& b) const {
    return scheme == b.scheme && host == b.host && port == b.port;
  }
};

Address address_of(const std::string& url) {
  const Curl& c = curl();
  const std::unique_ptr<CURLU, decltype(c.url_cleanup)> parts(c.url(), c.url_cleanup);
  Address out;
  if (c.url_set(parts.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return out;
  const auto get = [&](CURLUPart part, unsigned flags) {
    char* text = nullptr;
    if (c.url_get(parts.get(), part, &text, flags) != CURLUE_OK) return std::string();
    std::string copy = text;
    c.free(text);
    return copy;
  };
  out.user = get(CURLUPART_USER, CURLU_URLDECODE);
  out.password = get(CURLUPART_PASSWORD, CURLU_URLDECODE);
  for (const CURLUPart part : {CURLUPART_USER, CURLUPART_PASSWORD}) {
    c.url_set(parts.get(), part, nullptr, 0);
  }
  const auto lower = [](std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char b) { return std::tolower(b); });
    return text;
  };
  out.scheme = lower(get(CURLUPART_SCHEME, 0));
  out.host = lower(get(CURLUPART_HOST, 0));
  out.port = get(CURLUPART_PORT, CURLU_DEFAULT_PORT);
  out.url = get(CURLUPART_URL, 0);
  if (out.scheme != "http" && out.scheme != "https") out.scheme.clear();
  return out;
}

// What is asked for, and with which credentials.
struct Target {
  Address address;
  std::string user = {}, secret = {};      // of Signature 4 where there is a `signature`
  std::string token = {}, signature = {};  // empty: unsigned
};

Target target_of(const std::string& url) {
  const std::string place = without_secrets(url);
  if (lacks_secrets(url)) {
    fail(Code::kUnreadableData, place,
         "is how a run writes an address down, without what may be a secret in it (***); give the "
         "whole address, in the recipe or with --set");
  }
  Target out;
  std::string whole = url;
  if (url.starts_with("s3://")) {
    const size_t slash = url.find('/', 5);
    if (slash == std::string::npos || slash == 5 || slash + 1 == url.size()) {
      fail(Code::kUnreadableData, place, "must be s3://BUCKET/KEY");
    }
    const std::string bucket = url.substr(5, slash - 5), key = escaped(url.substr(slash + 1));
    const std::string region = variable("AWS_REGION", variable("AWS_DEFAULT_REGION", "us-east-1"));
    std::string endpoint = variable("AWS_ENDPOINT_URL");
    while (endpoint.ends_with('/')) endpoint.pop_back();
    whole = endpoint.empty() ? "https://" + bucket + ".s3." + region + ".amazonaws.com/" + key
                             : endpoint + '/' + bucket + '/' + key;
    out.user = variable("AWS_ACCESS_KEY_ID");
    out.secret = variable("AWS_SECRET_ACCESS_KEY");
    out.token = variable("AWS_SESSION_TOKEN");
    if (!out.user.empty()) out.signature = "aws:amz:" + region + ":s3";
  }
  out.address = address_of(whole);
  if (out.address.scheme.empty()) {
    fail(Code::kUnreadableData, place, "is no address of http, https or s3 that can be read");
  }
  if (out.signature.empty()) {
    out.user = out.address.user;
    out.secret = out.address.password;
  }
  return out;
}

// What came back.
struct Answer {
  std::span<std::byte> out;  // to be filled with the range's bytes
  int64_t offset = 0;        // ... from here on

  CURLcode fault = CURLE_OK;
  std::string refused = {};  // why no other try is worth it: the server does other than it is asked
  HttpHeader head = {};
  std::string location = {};  // of a redirection
  std::string error = {};     // the beginning of what a server says of one
  size_t filled = 0, error_bytes = 0;

  bool is_asked_for() const {
    return head.first == offset && head.last == offset + std::ssize(out) - 1;
  }
  bool redirects() const { return head.status >= 300 && head.status < 400 && !location.empty(); }
  bool may_pass() const {  // another try may succeed
    return refused.empty() &&
           (fault != CURLE_OK || head.status == 408 || head.status == 429 || head.status >= 500);
  }
};

std::string other_range(const Answer& answer) {
  if (answer.head.first < 0) return "the server does not say which bytes it sends (Content-Range)";
  return "the server answers with bytes " + std::to_string(answer.head.first) + " to " +
         std::to_string(answer.head.last) + ", which are not those that it is asked for";
}

size_t on_body(const char* data, size_t one, size_t count, void* user) {
  Answer& answer = *static_cast<Answer*>(user);
  const size_t bytes = one * count;
  if (answer.head.status == 200) {
    answer.refused =
        "the server sends more than the range that it is asked for; data is read in ranges";
    return 0;
  }
  if (answer.head.status != 206) {
    answer.error.append(data,
                        std::min(bytes, kShownError - std::min(kShownError, answer.error.size())));
    answer.error_bytes += bytes;
    return answer.error_bytes > kMostError ? 0 : bytes;
  }
  if (!answer.is_asked_for()) {
    answer.refused = other_range(answer);
    return 0;
  }
  if (bytes > answer.out.size() - answer.filled) {
    answer.refused = "the server sends more bytes than the range has that it names";
    return 0;
  }
  std::memcpy(answer.out.data() + answer.filled, data, bytes);
  answer.filled += bytes;
  return bytes;
}

size_t on_header(const char* data, size_t one, size_t count, void* user) {
  Answer& answer = *static_cast<Answer*>(user);
  const bool is_next = answer.head.add({data, one * count});
  if (is_next) answer = {.out = answer.out, .offset = answer.offset, .head = answer.head};
  if (answer.head.bytes <= kMostHeaders) return one * count;
  answer.refused = "the server's answer has more than 64 KiB of header";
  return 0;
}

int on_progress(void* user, curl_off_t /*down*/, curl_off_t /*of*/, curl_off_t /*up*/,
                curl_off_t /*of_up*/) {
  return asked(*static_cast<const StopQuestion*>(user)) ? 1 : 0;
}

// Whether a query's parameter is AWS's or Google's signature, which is new each time and does not
// change what is found there.
bool only_signs(std::string_view parameter) {
  return parameter.starts_with("X-Amz-") || parameter.starts_with("X-Goog-");
}

void replace_all(std::string& text, const std::string& what, const char* by) {
  constexpr size_t kShortest = 4;  // what is shorter is a word of its own right
  if (what.size() < kShortest) return;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
    at += std::strlen(by);
  }
}

}  // namespace

// Handles, each with a connection that stays open, as many as were in use at once.
struct HttpObject::Connections {
  Connections(const std::string& url, const RemoteAccess& how)
      : target(target_of(url)), place(without_secrets(url)), access(how) {}
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

  // One try, through redirections. Throws AskedToStop.
  Answer ask(int64_t offset, std::span<std::byte> out);
  Answer ask_at(const Address& address, int64_t offset, std::span<std::byte> out);
  // ... until it is no passing fault; with the last one's reason.
  Answer ask_steadily(int64_t offset, std::span<std::byte> out);
  void pause(Duration time) const;
  std::string reason(const Answer& answer) const;
  std::string without_own_secrets(std::string text) const;

  const Target target;
  const std::string place;
  const RemoteAccess access;
  std::mutex mutex;
  std::vector<CURL*> idle;
};

Answer HttpObject::Connections::ask(int64_t offset, std::span<std::byte> out) {
  Address at = target.address;
  for (int hop = 0;; ++hop) {
    Answer answer = ask_at(at, offset, out);
    if (!answer.redirects() || !answer.refused.empty()) return answer;
    Address next = address_of(answer.location);
    if (next.scheme.empty()) {
      answer.refused = "the server redirects to what is no address of http or https";
    } else if (at.scheme == "https" && next.scheme == "http") {
      answer.refused = "the server redirects from https to http at " + next.host;
    } else if (hop == kMostRedirects) {
      answer.refused = "the server redirects more than " + std::to_string(hop) + " times";
    }
    if (!answer.refused.empty()) return answer;
    at = std::move(next);
  }
}

Answer HttpObject::Connections::ask_at(const Address& address, int64_t offset,
                                       std::span<std::byte> out) {
  const Curl& c = curl();
  Answer answer{.out = out, .offset = offset};
  CURL* const handle = take();
  TROUPE_CHECK(handle != nullptr, place);
  c.reset(handle);
  const std::string range =
      std::to_string(offset) + '-' + std::to_string(offset + std::ssize(out) - 1);
  const int64_t patience = std::max<int64_t>(1, access.timeout.ns / 1'000'000);
  curl_slist* headers = nullptr;
  c.set(handle, CURLOPT_URL, address.url.c_str());
  c.set(handle, CURLOPT_RANGE, range.c_str());
  c.set(handle, CURLOPT_WRITEFUNCTION, &on_body);
  c.set(handle, CURLOPT_WRITEDATA, &answer);
  c.set(handle, CURLOPT_HEADERFUNCTION, &on_header);
  c.set(handle, CURLOPT_HEADERDATA, &answer);
  c.set(handle, CURLOPT_NOSIGNAL, 1L);
  c.set(handle, CURLOPT_NOPROGRESS, 0L);
  c.set(handle, CURLOPT_XFERINFOFUNCTION, &on_progress);
  c.set(handle, CURLOPT_XFERINFODATA, &access.stop);
  c.set(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::min<int64_t>(10'000, patience)));
  c.set(handle, CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(kSlowest));
  c.set(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>((patience + 999) / 1000));
  c.set(handle, CURLOPT_TIMEOUT_MS,
        static_cast<long>(patience + std::ssize(out) * 1000 / kSlowestOfAll));
  c.set(handle, CURLOPT_USERAGENT, "troupe");
  const std::string authorities = variable("AWS_CA_BUNDLE", variable("SSL_CERT_FILE"));
  if (!authorities.empty()) c.set(handle, CURLOPT_CAINFO, authorities.c_str());
  const bool ours = address.same_origin(target.address);
  if (ours && !target.user.empty()) {
    c.set(handle, CURLOPT_USERNAME, target.user.c_str());
    c.set(handle, CURLOPT_PASSWORD, target.secret.c_str());
  }
  if (ours && !target.signature.empty()) {
    c.set(handle, CURLOPT_AWS_SIGV4, target.signature.c_str());
    // The hash of an empty body, which the signature covers.
    headers = c.append(headers,
                       "x-amz-content-sha256: "
                       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    if (!target.token.empty()) {
      headers = c.append(headers, ("x-amz-security-token: " + target.token).c_str());
    }
  }
  c.set(handle, CURLOPT_HTTPHEADER, headers);
  answer.fault = c.perform(handle);
  const char* location = nullptr;
  c.info(handle, CURLINFO_REDIRECT_URL, &location);
  if (location != nullptr) answer.location = location;
  c.reset(handle);  // nothing of this answer stays in it, but the connection
  c.free_list(headers);
  put_back(handle);
  if (answer.fault == CURLE_ABORTED_BY_CALLBACK && asked(access.stop)) throw AskedToStop();
  // What is too long to be said is no fault of the answer before it.
  if (answer.error_bytes > kMostError && answer.fault == CURLE_WRITE_ERROR) answer.fault = CURLE_OK;
  if (answer.head.status == 206 && answer.fault == CURLE_OK && answer.refused.empty()) {
    if (!answer.is_asked_for()) {
      answer.refused = other_range(answer);
    } else if (answer.filled < out.size()) {
      answer.fault = CURLE_PARTIAL_FILE;
    }
  }
  return answer;
}

Answer HttpObject::Connections::ask_steadily(int64_t offset, std::span<std::byte> out) {
  int next_try = 2;
  for (const Duration time : {milliseconds(200), seconds(1), seconds(5), seconds(20)}) {
    Answer answer = ask(offset, out);
    if (!answer.may_pass()) return answer;
    access.log.warning(place + " at byte " + std::to_string(offset) + ": " + reason(answer) +
                       "; try " + std::to_string(next_try++) + " of 5 in " + to_text(time));
    pause(time);
  }
  return ask(offset, out);
}

void HttpObject::Connections::pause(Duration time) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(time.ns);
  while (std::chrono::steady_clock::now() < end) {
    if (asked(access.stop)) throw AskedToStop();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string HttpObject::Connections::without_own_secrets(std::string text) const {
  // A server may repeat all that it was sent.
  for (const std::string_view scheme : {"Basic ", "Bearer "}) {
    for (size_t at = text.find(scheme); at != std::string::npos; at = text.find(scheme, at)) {
      at += scheme.size();
      const size_t end = std::min(text.find_first_of(" \r\n\"'<", at), text.size());
      text.replace(at, end - at, "***");
    }
  }
  for (const std::string* secret : {&target.secret, &target.token}) {
    replace_all(text, *secret, "***");
  }
  const std::string& url = target.address.url;
  size_t begin = url.find('?');
  while (begin < url.size()) {
    const size_t end = std::min(url.find('&', begin + 1), url.size());
    const size_t equals = url.find('=', begin);
    if (equals < end) replace_all(text, url.substr(equals + 1, end - equals - 1), "***");
    begin = end;
  }
  return text;
}

std::string HttpObject::Connections::reason(const Answer& answer) const {
  if (!answer.refused.empty()) return answer.refused;
  if (answer.fault == CURLE_OPERATION_TIMEDOUT) {
    return "the server stands still: less than 1 KiB a second for " + to_text(access.timeout) +
           " (data.read_timeout)";
  }
  if (answer.fault != CURLE_OK) {
    return std::string("cannot be read: ") + curl().text(answer.fault);
  }
  std::string out = "the server says " + std::to_string(answer.head.status);
  if (answer.head.status == 403 || answer.head.status == 401) {
    out += target.signature.empty()
               ? " (not allowed; nothing was signed: for s3:// set AWS_ACCESS_KEY_ID and "
                 "AWS_SECRET_ACCESS_KEY)"
               : " (not allowed to " + target.user + ")";
  }
  std::string error = without_own_secrets(answer.error);
  std::replace_if(
      error.begin(), error.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return error.empty() ? out : out + ": " + error;
}

std::optional<HttpObject> HttpObject::find(const std::string& url, const RemoteAccess& access) {
  HttpObject object(url, access);
  std::byte first{};
  const Answer answer = object.connections_->ask_steadily(0, {&first, 1});
  const std::string& place = object.connections_->place;
  if (answer.head.status == 404) return {};
  if (answer.head.status == 416) return object;  // no first byte: it is empty
  if (answer.fault != CURLE_OK || answer.head.status != 206 || !answer.refused.empty()) {
    fail(Code::kUnreadableData, place, object.connections_->reason(answer));
  }
  if (answer.head.size > kMostSize) {
    fail(Code::kUnreadableData, place, "has", answer.head.size, "bytes, says the server; at most",
         kMostSize, "are read");
  }
  object.size_ = answer.head.size;
  object.version_ = answer.head.version();
  return object;
}

HttpObject::HttpObject(const std::string& url, const RemoteAccess& access)
    : connections_(std::make_shared<Connections>(url, access)) {}

std::string HttpObject::identity() const {
  const Address& address = connections_->target.address;
  const std::string url = address.url.substr(0, address.url.find('#'));
  size_t begin = std::min(url.find('?'), url.size());
  std::string out = address.user + '\n' + address.password + '\n' + url.substr(0, begin);
  while (begin < url.size()) {
    const size_t end = std::min(url.find('&', begin + 1), url.size());
    const std::string_view part = std::string_view(url).substr(begin + 1, end - begin - 1);
    if (!only_signs(part)) out.append("\n").append(part);
    begin = end;
  }
  return out;
}

void HttpObject::read(int64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  TROUPE_CHECK(offset >= 0 && offset + std::ssize(out) <= size_, connections_->place, offset,
               out.size(), size_);
  const Answer answer = connections_->ask_steadily(offset, out);
  const bool other = answer.head.status == 404 || answer.head.status == 416 ||
                     (answer.head.status == 206 && answer.head.size >= 0 &&
                      (answer.head.version() != version_ || answer.head.size != size_));
  if (other) {
    fail(Code::kDataChanged, connections_->place,
         "is not what it was when it was opened: it was version", version_, "of", size_,
         "bytes, now it is", answer.head.status == 206 ? answer.head.version() : "gone");
  }
  if (answer.fault != CURLE_OK || answer.head.status != 206 || !answer.refused.empty()) {
    fail(Code::kUnreadableData, connections_->place, "at byte", offset,
         connections_->reason(answer));
  }
}

}  // namespace troupe
