// The arguments of an operator, named once: a struct whose visit() says what a schema of PyTorch
// does, and what is checked of each tensor.
//
//   struct ScaleArgs {
//     const at::Tensor& x;                      // [T, E]
//     const std::optional<at::Tensor>& factor;  // [E], f32
//     double offset;
//     static constexpr const char *kName = "scale", *kResults = "Tensor";
//     static auto visit(auto& a, auto&& f) {
//       return f(arg("x", a.x, Dims{"TE"}), arg("factor", a.factor, Dims{"E"}, kFloatType),
//                arg("offset", a.offset, Default{0.}));
//     }
//   };
//   schema_text<ScaleArgs>()  ->  "scale(Tensor x, Tensor? factor, float offset=0.) -> Tensor"
//   check_args(a)['T']        ->  x's rows; both tensors were checked (arg_check.h)
//
// visit calls f once, with all of them in the order of the members, which is the schema's; another
// order is refused when the library is loaded (define.h). What several operators share is a struct
// with a visit of its own, group(a.rule). Tensors are references: such a struct lives as long as a
// call, and what a backward captures is numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace troupe {

// Facts of an argument, behind its value in any order.
template <class T>
struct Default {
  T value;
};
template <class T>
Default(T) -> Default<T>;
inline constexpr Default kDefaultNone{std::nullopt};
struct KeywordOnly {};  // as all that follow
struct Written {        // by the operator
  bool really = true;
};
struct
    Dims {  // a letter a dimension: one size in all arguments. `1`: 1, `*`: any, `...`: any before
  const char* letters;
};
struct LeadArg {};  // others are on its device; without one, the first that has Dims
struct OfType {
  enum class Rule { kAny, kGiven, kLead, kWide } rule = Rule::kAny;
  at::ScalarType given = at::kFloat;
};
inline constexpr KeywordOnly kKeywordOnly;
inline constexpr LeadArg kLead;
inline constexpr OfType kIntType{OfType::Rule::kGiven, at::kInt};
inline constexpr OfType kLongType{OfType::Rule::kGiven, at::kLong};
inline constexpr OfType kFloatType{OfType::Rule::kGiven, at::kFloat};
inline constexpr OfType kLeadType{OfType::Rule::kLead};
inline constexpr OfType kWideType{OfType::Rule::kWide};  // wide_type() of the lead

template <class T, class... Facts>
struct Arg {
  using Plain = std::remove_const_t<T>;
  static constexpr bool kIsTensor =
      std::is_same_v<Plain, at::Tensor> || std::is_same_v<Plain, std::optional<at::Tensor>>;
  // As an operator takes it.
  using Parameter = std::conditional_t<kIsTensor, const Plain&, Plain>;
  template <class Fact>
  static constexpr bool kHas = (std::is_same_v<Fact, Facts> || ...);

  const char* name;
  T& value;
  std::tuple<Facts...> facts;
};
template <class T, class... Facts>
Arg<T, Facts...> arg(const char* name, T& value, Facts... facts) {
  return {name, value, {facts...}};
}

template <class Args>
struct ArgGroup {
  Args& args;
};
template <class Args>
ArgGroup<Args> group(Args& args) {
  return {args};
}

// A tuple of all Arg, those of groups in their places.
template <class Args>
auto args_tuple(Args& args);

namespace detail {

template <class T, class... Facts>
auto flat_args(const Arg<T, Facts...>& one) {
  return std::tuple<Arg<T, Facts...>>(one);
}
template <class Args>
auto flat_args(const ArgGroup<Args>& some) {
  return args_tuple(some.args);
}

template <class... T>
struct Types {};
template <class Tuple>
struct ParametersOf;
template <class... A>
struct ParametersOf<std::tuple<A...>> {
  using type = Types<typename A::Parameter...>;
};

}  // namespace detail

template <class Args>
auto args_tuple(Args& args) {
  return std::remove_const_t<Args>::visit(
      args, [](const auto&... each) { return std::tuple_cat(detail::flat_args(each)...); });
}

// The parameters of an operator's function, as Types.
template <class Args>
using OpParameters =
    typename detail::ParametersOf<decltype(args_tuple(std::declval<Args&>()))>::type;

// The members in their order, those of groups among them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-braces"
template <class Args, class... In>
Args args_of(In&&... in) {
  return Args{std::forward<In>(in)...};
}
#pragma GCC diagnostic pop

namespace detail {

// f(args, values) of a call whose tensors are undefined and numbers 0.
template <class Args, class... T, class F>
auto with_example(Types<T...>, const F& f) {
  std::tuple<std::remove_cvref_t<T>...> values{};
  return std::apply(
      [&](auto&... each) {
        Args args = args_of<Args>(each...);
        return f(args, values);
      },
      values);
}

// The words of a schema: of an alias `mark` stands between the two.
struct TypeWords {
  std::string head, tail = "";
};
TypeWords type_words(std::type_identity<at::Tensor>);
TypeWords type_words(std::type_identity<std::optional<at::Tensor>>);
TypeWords type_words(std::type_identity<at::TensorList>);
TypeWords type_words(std::type_identity<int64_t>);
TypeWords type_words(std::type_identity<c10::SymInt>);
TypeWords type_words(std::type_identity<double>);
TypeWords type_words(std::type_identity<std::optional<double>>);
TypeWords type_words(std::type_identity<bool>);
TypeWords type_words(std::type_identity<std::string>);
TypeWords type_words(std::type_identity<at::ScalarType>);
template <size_t n>
TypeWords type_words(std::type_identity<std::array<bool, n>>) {
  return {"bool[" + std::to_string(n) + "]"};
}
std::string float_text(double x);  // 0 is `0.`, 1e-8 `1e-8`

template <class T, class Given>
std::string default_text(const Given& given) {
  if constexpr (std::is_same_v<Given, std::nullopt_t>) {
    static_assert(std::is_constructible_v<T, std::nullopt_t>, "only an optional argument is None");
    return "None";
  } else if constexpr (std::is_same_v<T, bool>) {
    static_assert(std::is_same_v<Given, bool>);
    return given ? "True" : "False";
  } else if constexpr (std::is_same_v<T, double>) {
    return float_text(given);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return '"' + std::string(given) + '"';
  } else {
    static_assert(std::is_same_v<T, int64_t> || std::is_same_v<T, c10::SymInt>);
    return std::to_string(int64_t{given});
  }
}

template <class A, class Fact>
void add_default(std::string& /*text*/, const Fact& /*fact*/) {}
template <class A, class Given>
void add_default(std::string& text, const Default<Given>& fact) {
  text += '=' + default_text<typename A::Plain>(fact.value);
}

template <class T, class... Facts>
void add_to_schema(std::string& text, const Arg<T, Facts...>& one) {
  using A = Arg<T, Facts...>;
  if (!text.empty()) text += ", ";
  if (A::template kHas<KeywordOnly>) text += "*, ";
  const TypeWords words = type_words(std::type_identity<typename A::Plain>());
  text += words.head;
  if constexpr (A::template kHas<Written>)
    text += std::get<Written>(one.facts).really ? "(a!)" : "";
  text += words.tail + ' ' + one.name;
  std::apply([&](const auto&... fact) { (add_default<A>(text, fact), ...); }, one.facts);
}

template <class A, class Value>
bool stands_at(const A& one, const Value& value, const void*& last) {
  if constexpr (A::kIsTensor) return &one.value == &value;
  const void* before = std::exchange(last, &one.value);
  return std::less<>()(before, last);
}

}  // namespace detail

template <class Args>
std::string schema_text() {
  std::string text;
  detail::with_example<Args>(OpParameters<Args>(), [&](auto& args, const auto& /*values*/) {
    std::apply([&](const auto&... each) { (detail::add_to_schema(text, each), ...); },
               args_tuple(args));
  });
  return std::string(Args::kName) + '(' + text + ") -> " + Args::kResults;
}

// Does visit() name the members in their order? A struct is filled by it.
template <class Args>
bool in_member_order() {
  return detail::with_example<Args>(OpParameters<Args>(), [](auto& args, const auto& values) {
    const auto all = args_tuple(args);
    const void* last = nullptr;
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return (detail::stands_at(std::get<i>(all), std::get<i>(values), last) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<std::remove_const_t<decltype(all)>>>());
  });
}

}  // namespace troupe
