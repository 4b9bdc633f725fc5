#include "troupe/checkpoint/files/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "troupe/checkpoint/files/publish_safetensors_test.h"
#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

std::string length(uint64_t n) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out;
}

std::string file_of(const std::string& json, const std::string& data) {
  return length(json.size()) + json + data;
}

class Safetensors : public ::testing::Test {
 protected:
  SafetensorsFile open(const std::string& bytes) {
    publish_file(fs_, path(), bytes);
    return SafetensorsFile(path());
  }

  // The refusal's text after the path and code.
  std::string refusal(const std::string& bytes) {
    try {
      open(bytes);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kBadModelFile) << e.what();
      const std::string what = e.what(), head = path() + ": E4003 ";
      EXPECT_EQ(what.substr(0, head.size()), head);
      return what.substr(std::min(head.size(), what.size()));
    }
    return "accepted";
  }
  void refuses(const std::string& json, const std::string& data, const std::string& with) {
    const std::string what = refusal(file_of(json, data));
    EXPECT_NE(what.find(with), std::string::npos) << json << "\n gives: " << what;
  }

  std::string path() const { return folder_ / "x.safetensors"; }
  testing::TemporaryFolder folder_;
  Fs fs_;
};

// One tensor "a" with these fields.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

const std::string kEight(8, '\1');

TEST_F(Safetensors, F43_RefusesAFileTooShortForALength) {
  EXPECT_EQ(refusal(""), "header too small: the file has 0 bytes, a header begins with 8");
  EXPECT_EQ(refusal("1234567"), "header too small: the file has 7 bytes, a header begins with 8");
}

TEST_F(Safetensors, F43_RefusesAHeaderBeyondTheLimitOrTheFile) {
  EXPECT_EQ(refusal(length(100'000'001)), "header too large: 100000001 bytes, at most 100000000");
  EXPECT_EQ(refusal(length(~uint64_t{0})),
            "header too large: 18446744073709551615 bytes, at most 100000000");
  EXPECT_EQ(refusal(length(3) + "{}"), "invalid header length: 3 bytes in a file of 10");
}

TEST_F(Safetensors, F43_RefusesAnEmptyHeaderAndAcceptsNoTensors) {
  EXPECT_NE(refusal(length(0)).find("invalid JSON in the header"), std::string::npos);
  EXPECT_TRUE(open(file_of("{}", "")).tensors().empty());
  refuses("{}", "x", "the tensors end at byte 0 of the data, which has 1");
}

TEST_F(Safetensors, F43_RefusesWhatIsNotOneUtf8Object) {
  refuses("{\"\xff\":1}", "", "invalid JSON");
  refuses("[]", "", "must begin with {");
  refuses("\"a\"", "", "must begin with {");
  refuses(std::string("{}\0", 3), "", "a NUL byte at byte 2 of the header");
  refuses("{", "", "invalid JSON");
  refuses("{}{}", "", "invalid JSON");
  refuses(" {}", "", "must begin with {");
  refuses("\xef\xbb\xbf{}", "", "must begin with {");
  EXPECT_TRUE(open(file_of("{} \n\t ", "")).tensors().empty());
}

TEST_F(Safetensors, F43_RefusesADuplicateName) {
  const std::string one = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  refuses('{' + one + R"(,"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", kEight,
          "duplicate name: tensor \"a\"");
}

TEST_F(Safetensors, AcceptsAnUnknownFieldWhateverItHolds) {
  for (const char* extra : {"1", "-1.5", "null", "true", "\"dtype\"", "[1,[2,{}]]",
                            R"({"dtype":"F64","shape":[[9]],"x":{"data_offsets":[]}})"}) {
    const auto file = open(file_of(R"({"a":{"more":)" + std::string(extra) +
                                       R"(,"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                                   kEight));
    ASSERT_EQ(file.tensors().size(), 1u) << extra;
    EXPECT_EQ(file.tensors()[0].shape, Sizes{2}) << extra;
  }
}

TEST_F(Safetensors, F43_RefusesFieldsThatAreMissingOrWrong) {
  refuses(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", kEight,
          "tensor \"a\": missing field dtype");
  refuses(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", kEight, "missing field shape");
  refuses(R"({"a":{"dtype":"F32","shape":[2]}})", kEight, "missing field data_offsets");
  refuses(entry("F32", "[2]", "[0,8,9]"), kEight, "data_offsets has 3 numbers, not 2");
  refuses(entry("F32", "[2]", "[0]"), kEight, "data_offsets has 1 numbers, not 2");
  refuses(entry("F32", "[-2]", "[0,8]"), kEight, "invalid shape: the number -2");
  refuses(entry("F32", "[2.0]", "[0,8]"), kEight, "invalid shape: the number 2.0");
  refuses(entry("F32", "[\"2\"]", "[0,8]"), kEight, "invalid shape: the text \"2\"");
  refuses(entry("F32", "[[2]]", "[0,8]"), kEight, "invalid shape: a list");
  refuses(entry("F32", "2", "[0,8]"), kEight, "invalid shape: the number 2");
  refuses(entry("F32", "null", "[0,8]"), kEight, "invalid shape: null");
  refuses(entry("F32", "[2]", "[-1,8]"), kEight, "invalid data_offsets: the number -1");
  refuses(entry("F31", "[2]", "[0,8]"), kEight, "unknown dtype \"F31\"");
  refuses(entry("f32", "[2]", "[0,8]"), kEight, "unknown dtype \"f32\"");
  refuses(R"({"a":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})", kEight, "invalid dtype");
  refuses(R"({"a":5})", "", "tensor \"a\": the number 5 where an object is expected");
  refuses(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", kEight,
          "the field dtype is written twice");
  refuses(R"({"a":{"dtype":"F32","shape":[],"shape":[2],"data_offsets":[0,8]}})", kEight,
          "the field shape is written twice");
}

TEST_F(Safetensors, F44_RefusesAShapeThatOverflowsBeforeItAllocates) {
  refuses(entry("F32", "[4294967296,4294967296]", "[0,8]"), kEight, "overflows");
  refuses(entry("F32", "[18446744073709551615]", "[0,8]"), kEight, "invalid shape");
  refuses(entry("F64", "[9223372036854775807]", "[0,8]"), kEight, "overflows");
  refuses(entry("F32", "[274877906944]", "[0,1099511627776]"), kEight,
          "the tensors end at byte 1099511627776 of the data, which has 8 (was the file cut?)");
  refuses(entry("F32", "[99999999999999999999999]", "[0,8]"), kEight, "invalid shape");
}

TEST_F(Safetensors, F43_RefusesOffsetsThatDoNotFitTheShape) {
  refuses(entry("F32", "[2]", "[8,0]"), kEight, "[8, 0] end before they begin");
  refuses(entry("F32", "[3]", "[0,8]"), kEight, "hold 8 bytes, but F32 [3] needs 12 bytes");
  refuses(entry("F4", "[3]", "[0,2]"), "ab", "hold 2 bytes, but F4 [3] needs 12 bits");
  EXPECT_EQ(open(file_of(entry("F4", "[4]", "[0,2]"), "ab")).tensors()[0].bytes(), 2);
  EXPECT_EQ(open(file_of(entry("F6_E2M3", "[4]", "[0,3]"), "abc")).tensors()[0].bytes(), 3);
}

TEST_F(Safetensors, F43_RefusesHolesOverlapsAndDataLeftOver) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"I8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"I8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(refusal(file_of(two("[0,4]", "[4,8]"), kEight)), "accepted");
  EXPECT_EQ(refusal(file_of(two("[4,8]", "[0,4]"), kEight)), "accepted");
  refuses(two("[0,4]", "[5,9]"), kEight + "x",
          "tensor \"b\": a hole: it begins at byte 5 and \"a\" ends at 4");
  refuses(two("[0,4]", "[3,7]"), kEight, "tensor \"b\": an overlap: it begins at byte 3");
  refuses(two("[0,4]", "[0,4]"), kEight, "an overlap");
  refuses(two("[1,5]", "[5,9]"), kEight + "x", "a hole: it begins at byte 1 and the data begins");
  refuses(two("[0,4]", "[4,8]"), "1234567",
          "the tensors end at byte 8 of the data, which has 7 (was the file cut?)");
  refuses(two("[0,4]", "[4,8]"), kEight + "x",
          "the tensors end at byte 8 of the data, which has 9 (is something appended?)");
}

TEST_F(Safetensors, ReadsNumbersAndEmptyTensorsOnABorder) {
  EXPECT_EQ(open(file_of(entry("F64", "[]", "[0,8]"), kEight)).tensors()[0].shape, Sizes{});
  const std::string json = R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
                           R"("c":{"dtype":"I8","shape":[4],"data_offsets":[4,8]}})";
  EXPECT_EQ(open(file_of(json, kEight)).find("b")->bytes(), 0);
  refuses(R"({"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})", kEight, "a hole");
}

TEST_F(Safetensors, ReadsATensorThatIsNotAligned) {
  const std::string json = R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  const float wanted = 2.5f;
  std::string data(5, '\0');
  std::memcpy(data.data() + 1, &wanted, 4);
  float got = 0;
  const SafetensorsFile file = open(file_of(json, data));
  file.read(*file.find("b"), 0, std::as_writable_bytes(std::span(&got, 1)));
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST_F(Safetensors, F43_RefusesANulInANameAndWarnsOfAnEmptyOne) {
  refuses(R"({"a\u0000b":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})", "",
          "holds a NUL byte");
  const auto file = open(file_of(R"({"":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})", ""));
  ASSERT_EQ(file.warnings().size(), 1u);
  EXPECT_NE(file.warnings()[0].find("empty name"), std::string::npos);
}

TEST_F(Safetensors, F43_MetadataIsTextAlone) {
  const auto file = open(file_of(R"({"__metadata__":{"format":"pt","x":null}})", ""));
  EXPECT_EQ(*file.find_metadata("format"), "pt");
  EXPECT_EQ(*file.find_metadata("x"), "");
  EXPECT_EQ(file.find_metadata("y"), nullptr);
  refuses(R"({"__metadata__":{"x":1}})", "", "__metadata__ \"x\" is the number 1 and not text");
  refuses(R"({"__metadata__":{"x":{}}})", "", "__metadata__ \"x\" is an object and not text");
  refuses(R"({"__metadata__":{"x":[]}})", "", "__metadata__ \"x\" is a list and not text");
  refuses(R"({"__metadata__":5})", "", "the number 5 where an object is expected");
  refuses(R"({"__metadata__":{},"__metadata__":{}})", "", "__metadata__ is written twice");
}

TEST_F(Safetensors, F140_NestingAndCountsAreBounded) {
  std::string deep = R"({"a":{"x":)";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  refuses(deep, "", "nested deeper than 64");
  std::string digits = R"({"a":{"dtype":"F32","shape":[)" + std::string(1'000'000, '9') + "]}}";
  refuses(digits, "", "number overflow");
  std::string many = "{";
  for (int i = 0; i <= 500'000; ++i) {
    many += (i ? ",\"" : "\"") + std::to_string(i) +
            R"(":{"dtype":"I8","shape":[0],"data_offsets":[0,0]})";
  }
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  refuses(many + '}', "", "more than 500000 tensors");
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 300'000);  // KiB
}

TEST_F(Safetensors, CountsNumbersThatAreNotFinite) {
  const float floats[] = {1, NAN, -INFINITY, 0, INFINITY};
  EXPECT_EQ(count_unsound(Element::kF32, std::as_bytes(std::span(floats))), 3);
  const double doubles[] = {1, NAN, 1e300};
  EXPECT_EQ(count_unsound(Element::kF64, std::as_bytes(std::span(doubles))), 1);
  const uint16_t halves[] = {0x7c00, 0x7bff, 0xfe00, 0x7f80};
  EXPECT_EQ(count_unsound(Element::kF16, std::as_bytes(std::span(halves))), 3);
  EXPECT_EQ(count_unsound(Element::kBF16, std::as_bytes(std::span(halves))), 1);
  const uint8_t bools[] = {0, 1, 2};
  EXPECT_EQ(count_unsound(Element::kBool, std::as_bytes(std::span(bools))), 1);
  EXPECT_EQ(count_unsound(Element::kI64, std::as_bytes(std::span(doubles))), 0);
}

// The reference library's own bytes for z: I64 [] = 7, w: F32 [2] = 1, 2, b: F16 [1] = 3.
std::string golden() {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
      R"("b":{"dtype":"F16","shape":[1],"data_offsets":[16,18]}})";
  return length(200) + json + std::string(7, ' ') +
         std::string("\x07\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40\0\x42", 18);
}

TEST_F(Safetensors, WritesTheReferencesBytesAndReadsThem) {
  const int64_t z = 7;
  const float w[] = {1, 2};
  const uint16_t b = 0x4200;
  const auto layout = layout_safetensors({{.name = "b", .element = Element::kF16, .shape = {1}},
                                          {.name = "w", .element = Element::kF32, .shape = {2}},
                                          {.name = "z", .element = Element::kI64, .shape = {}}});
  publish_safetensors(fs_, path(), layout, [&](const SafetensorsEntry& t, const WriteBytes& write) {
    if (t.name == "z") write(std::as_bytes(std::span(&z, 1)));
    if (t.name == "w") {
      write(std::as_bytes(std::span(w, 1)));
      write(std::as_bytes(std::span(w + 1, 1)));
    }
    if (t.name == "b") write(std::as_bytes(std::span(&b, 1)));
  });
  EXPECT_EQ(read_file(path()), golden());
  const SafetensorsFile file = open(golden());
  EXPECT_EQ(file.tensors()[0].name, "z");
  EXPECT_EQ(*file.find_metadata("format"), "pt");
  float got[2];
  file.read(*file.find("w"), 0, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(got[1], 2);
  EXPECT_EQ(file.header_hash(), hash64(std::string_view(golden()).substr(0, 208)));
  EXPECT_THROW(file.read(*file.find("w"), 1, std::as_writable_bytes(std::span(got))), Error);
}

TEST_F(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const auto layout = layout_safetensors({{.name = "a", .element = Element::kF32, .shape = {2}}});
  EXPECT_THROW(publish_safetensors(fs_, path(), layout,
                                   [](const SafetensorsEntry&, const WriteBytes& write) {
                                     write(std::as_bytes(std::span("1234", 4)));
                                   }),
               Error);
  EXPECT_THROW(open(""), Error);
  EXPECT_THROW(layout_safetensors({{.name = "a", .element = Element::kF4, .shape = {3}}}), Error);
  EXPECT_THROW(layout_safetensors({{.name = "a", .element = Element::kF4, .shape = {-2}}}), Error);
  EXPECT_EQ(layout_safetensors({}, {}).header, length(8) + "{}      ");
}

}  // namespace
}  // namespace troupe
