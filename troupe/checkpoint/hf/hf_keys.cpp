#include "troupe/checkpoint/hf/hf_keys.h"

namespace troupe {
namespace {

// The library's own parser looks for each name among all before it: 80,000 take half a minute.
class InOrder : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& text) override { return add(std::move(text)); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override { return name_ = std::move(name), true; }
  bool start_object(size_t) override { return add(Json::object(), true); }
  bool start_array(size_t) override { return add(Json::array(), true); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool add(Json value, bool opens = false) {
    Json* at = &root_;
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      at = &open_.back()->back();
    } else {
      auto& object = open_.back()->get_ref<Json::object_t&>();
      object.emplace_back(std::move(name_), std::move(value));
      at = &object.back().second;
    }
    if (opens) open_.push_back(at);
    return true;
  }

  Json root_;
  std::string name_;
  std::vector<Json*> open_;  // each the last in the one before it, which stays where it is
};

}  // namespace

Json parse_in_order(const std::string& text) {
  InOrder events;
  TROUPE_CHECK(Json::sax_parse(text, &events), "text that was accepted before");
  return events.take();
}

}  // namespace troupe
