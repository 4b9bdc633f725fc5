#include "troupe/train/recipe/foreign/shell_arithmetic.h"

#include <array>
#include <cctype>
#include <string_view>

#include "troupe/train/recipe/foreign/shell_letters.h"

namespace troupe {
namespace {

constexpr int kDeepestBracket = 64;  // brackets in brackets, and names whose values are expressions
constexpr int kMostNumbers = 100'000;  // numbers and names that are read: a=b+b, b=c+c doubles them

struct ArithmeticFault {};

int64_t wrapped(uint64_t x) {
  return static_cast<int64_t>(x);
}

class Arithmetic {
 public:
  Arithmetic(const std::string& text, const ShellNames& names, int depth, int& left)
      : text_(text), names_(names), depth_(depth), left_(left) {}

  int64_t whole() {
    blanks();
    if (at_ == text_.size()) return 0;
    const int64_t value = comma();
    if (at_ != text_.size()) throw ArithmeticFault();
    return value;
  }

 private:
  struct Level {
    std::array<std::string_view, 4> operators;
  };
  // From the loosest to the tightest; longer operators of a level stand first.
  static constexpr std::array<Level, 10> kLevels = {{{{"||"}},
                                                     {{"&&"}},
                                                     {{"|"}},
                                                     {{"^"}},
                                                     {{"&"}},
                                                     {{"==", "!="}},
                                                     {{"<=", ">=", "<", ">"}},
                                                     {{"<<", ">>"}},
                                                     {{"+", "-"}},
                                                     {{"*", "/", "%"}}}};

  void blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(std::string_view what) {
    blanks();
    if (text_.compare(at_, what.size(), what) != 0) return false;
    at_ += what.size();
    blanks();
    return true;
  }
  char next(size_t ahead) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  // Whether the operator stands here and is not the begin of a longer one.
  bool take_operator(std::string_view what) {
    blanks();
    if (what.empty() || text_.compare(at_, what.size(), what) != 0) return false;
    const char after = next(what.size());
    const bool doubles = what == "|" || what == "&" || what == "<" || what == ">" || what == "*";
    if (doubles && after == what[0]) return false;
    const bool compares = what == "<=" || what == ">=" || what == "==" || what == "!=";
    if (!compares && after == '=') return false;
    return take(what);
  }

  int64_t comma() {
    int64_t value = assignment();
    while (take(",")) value = assignment();
    return value;
  }

  int64_t assignment() {
    if (++depth_ > kDeepestBracket) throw ArithmeticFault();
    const size_t begin = at_;
    size_t end = at_;
    while (end < text_.size() && is_shell_name(text_[end])) ++end;
    const std::string name = text_.substr(begin, end - begin);
    int64_t value = 0;
    if (!name.empty() && !is_shell_digit(name[0])) {
      at_ = end;
      for (const std::string_view op :
           {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="}) {
        blanks();
        if (text_.compare(at_, op.size(), op) != 0 || (op == "=" && next(1) == '=')) continue;
        take(op);
        value = assignment();
        if (op != "=") value = combined(op.substr(0, op.size() - 1), name_value(name), value);
        assign(name, value);
        --depth_;
        return value;
      }
      at_ = begin;
    }
    value = conditional();
    --depth_;
    return value;
  }

  int64_t conditional() {
    const int64_t condition = binary(0);
    if (!take("?")) return condition;
    const int64_t yes = quietly(condition == 0, [&] { return assignment(); });
    if (!take(":")) throw ArithmeticFault();
    const int64_t no = quietly(condition != 0, [&] { return assignment(); });
    return condition != 0 ? yes : no;
  }

  // What is not reached is read, and has no effect.
  template <class F>
  int64_t quietly(bool skipped, F&& read) {
    skipped_ += skipped;
    const int64_t value = read();
    skipped_ -= skipped;
    return value;
  }

  int64_t binary(size_t level) {
    if (level == kLevels.size()) return power();
    int64_t left = binary(level + 1);
    for (;;) {
      std::string_view found;
      for (const std::string_view op : kLevels[level].operators) {
        if (found.empty() && take_operator(op)) found = op;
      }
      if (found.empty()) return left;
      const bool decided = (found == "||" && left != 0) || (found == "&&" && left == 0);
      const int64_t right = quietly(decided, [&] { return binary(level + 1); });
      left = combined(found, left, right);
    }
  }

  int64_t combined(std::string_view op, int64_t a, int64_t b) const {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    if (op == "||") return a != 0 || b != 0;
    if (op == "&&") return a != 0 && b != 0;
    if (op == "|") return a | b;
    if (op == "^") return a ^ b;
    if (op == "&") return a & b;
    if (op == "==") return a == b;
    if (op == "!=") return a != b;
    if (op == "<=") return a <= b;
    if (op == ">=") return a >= b;
    if (op == "<") return a < b;
    if (op == ">") return a > b;
    if (op == "<<") return wrapped(x << (y & 63));
    if (op == ">>") return a >> (y & 63);
    if (op == "+") return wrapped(x + y);
    if (op == "-") return wrapped(x - y);
    if (op == "*") return wrapped(x * y);
    if (skipped_ > 0 && b == 0) return 0;
    if (b == 0) throw ArithmeticFault();
    if (b == -1) return op == "/" ? wrapped(0 - x) : 0;
    return op == "/" ? a / b : a % b;
  }

  int64_t power() {
    const int64_t base = unary();
    if (!take("**")) return base;
    if (++depth_ > kDeepestBracket) throw ArithmeticFault();
    int64_t left = power();
    --depth_;
    if (left < 0) throw ArithmeticFault();
    uint64_t value = 1, square = static_cast<uint64_t>(base);
    for (; left > 0; left >>= 1, square *= square) value *= (left & 1) != 0 ? square : 1;
    return wrapped(value);
  }

  int64_t unary() {
    if (++depth_ > kDeepestBracket) throw ArithmeticFault();
    blanks();
    int64_t value = 0;
    if (text_.compare(at_, 2, "++") == 0 || text_.compare(at_, 2, "--") == 0) {
      const int64_t step = text_[at_] == '+' ? 1 : -1;
      at_ += 2;
      blanks();
      const std::string name = read_name();
      value = name_value(name) + step;
      assign(name, value);
    } else if (take("!")) {
      value = unary() == 0;
    } else if (take("~")) {
      value = ~unary();
    } else if (take("-")) {
      value = wrapped(0 - static_cast<uint64_t>(unary()));
    } else if (take("+")) {
      value = unary();
    } else {
      value = primary();
    }
    --depth_;
    return value;
  }

  int64_t primary() {
    if (--left_ < 0) throw ArithmeticFault();
    if (take("(")) {
      const int64_t value = comma();
      if (!take(")")) throw ArithmeticFault();
      return value;
    }
    if (is_shell_digit(next(0))) return number();
    const std::string name = read_name();
    const int64_t value = name_value(name);
    if (text_.compare(at_, 2, "++") == 0 || text_.compare(at_, 2, "--") == 0) {
      assign(name, value + (text_[at_] == '+' ? 1 : -1));
      at_ += 2;
      blanks();
    }
    return value;
  }

  std::string read_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_shell_name(text_[at_])) ++at_;
    if (at_ == begin || is_shell_digit(text_[begin])) throw ArithmeticFault();
    const std::string name = text_.substr(begin, at_ - begin);
    blanks();
    return name;
  }

  int64_t number() {
    int base = 10;
    if (next(0) == '0' && (next(1) == 'x' || next(1) == 'X')) {
      base = 16, at_ += 2;
    } else if (next(0) == '0' && is_shell_digit(next(1))) {
      base = 8, at_ += 1;
    }
    uint64_t value = digits(base);
    if (base == 10 && next(0) == '#') {
      if (value < 2 || value > 36) throw ArithmeticFault();
      ++at_;
      value = digits(static_cast<int>(value));
    }
    if (at_ < text_.size() && (is_shell_name(text_[at_]) || text_[at_] == '.'))
      throw ArithmeticFault();
    blanks();
    return wrapped(value);
  }

  uint64_t digits(int base) {
    uint64_t value = 0;
    for (const size_t begin = at_;; ++at_) {
      const int c = std::tolower(static_cast<unsigned char>(next(0)));
      const int digit = std::isdigit(c) != 0 ? c - '0' : std::isalpha(c) != 0 ? c - 'a' + 10 : 99;
      if (digit < base) {
        value = value * static_cast<uint64_t>(base) + static_cast<uint64_t>(digit);
      } else if (at_ == begin) {
        throw ArithmeticFault();
      } else {
        return value;
      }
    }
  }

  int64_t name_value(const std::string& name) const {
    if (skipped_ > 0) return 0;
    const std::optional<std::string> value = names_.value(name);
    if (!value || depth_ >= kDeepestBracket) throw ArithmeticFault();
    return Arithmetic(*value, names_, depth_ + 8, left_).whole();
  }
  void assign(const std::string& name, int64_t value) const {
    if (skipped_ == 0) names_.assign(name, value);
  }

  const std::string& text_;
  const ShellNames& names_;
  size_t at_ = 0;
  int depth_, skipped_ = 0;
  int& left_;
};

}  // namespace

std::optional<int64_t> shell_arithmetic(const std::string& text, const ShellNames& names) {
  try {
    int left = kMostNumbers;
    return Arithmetic(text, names, 0, left).whole();
  } catch (const ArithmeticFault&) {
    return std::nullopt;
  }
}

}  // namespace troupe
