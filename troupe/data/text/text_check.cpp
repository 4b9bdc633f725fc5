#include "troupe/data/text/text_check.h"

#include <algorithm>
#include <cstdint>

#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

using namespace std::string_view_literals;

// How a file of that sort begins. Where the mark is plain letters, text may begin with it too: then
// there have to be bytes that text has not.
struct Mark {
  std::string_view bytes;
  std::string_view is;
  bool letters = false;
};
constexpr Mark kMarks[] = {
    {"\x1F\x8B"sv, "compressed (gzip): unpack it first"},
    {"\x28\xB5\x2F\xFD"sv, "compressed (Zstandard): unpack it first"},
    {"\xFD\x37zXZ\0"sv, "compressed (xz): unpack it first"},
    {"BZh"sv, "compressed (bzip2): unpack it first", true},
    {"\x04\x22\x4D\x18"sv, "compressed (LZ4): unpack it first"},
    {"PK\x03\x04"sv, "a zip archive, as .docx, .epub, .npz and .pt are: take out its text"},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7z archive: unpack it first"},
    {"%PDF-"sv, "a PDF: take out its text (pdftotext)"},
    {"PAR1"sv, "a Parquet table: `data build` reads it, by a name that ends with .parquet", true},
    {"ARROW1\0"sv, "an Arrow table: `data build` reads it, by a name that ends with .arrow"},
    {"\xFF\xFF\xFF\xFF"sv,
     "an Arrow stream: `data build` reads it, by a name that ends with .arrow"},
    {"FEA1"sv, "a Feather table: write its text as JSONL", true},
    {"ORC"sv, "an ORC table: write its text as JSONL", true},
    {"Obj\x01"sv, "an Avro file: write its text as JSONL"},
    {"SQLite format 3\0"sv, "an SQLite database: write its text as JSONL"},
    {"\x89HDF\r\n\x1A\n"sv, "an HDF5 file"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"\x80\x02"sv, "a pickle"},
    {"\x80\x03"sv, "a pickle"},
    {"\x80\x04"sv, "a pickle"},
    {"\x80\x05"sv, "a pickle"},
    {"GGUF"sv, "a GGUF model", true},
    {"MMIDIDX\0"sv, "an index of tokens, which need no build"},
    {"\x89PNG\r\n\x1A\n"sv, "a PNG image"},
    {"\xFF\xD8\xFF"sv, "a JPEG image"},
    {"GIF8"sv, "a GIF image", true},
    {"II*\0"sv, "a TIFF image"},
    {"MM\0*"sv, "a TIFF image"},
    {"RIFF"sv, "a RIFF file, as WebP, WAV and AVI are", true},
    {"OggS"sv, "an Ogg file", true},
    {"\x7F\x45LF"sv, "an executable (ELF)"},
    {"MZ"sv, "an executable (Windows)", true},
    {"\xCF\xFA\xED\xFE"sv, "an executable (Mach-O)"},
    {"\xCA\xFE\xBA\xBE"sv, "an executable (Mach-O or Java)"},
    {"\0asm"sv, "an executable (WebAssembly)"},
};

uint32_t number_at(std::string_view bytes, size_t at, size_t size, bool big_endian) {
  uint32_t out = 0;
  for (size_t i = 0; i < size; ++i) {
    const size_t shift = 8 * (big_endian ? size - 1 - i : i);
    out |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << shift;
  }
  return out;
}

// Whether numbers of `size` bytes are all characters, and enough of them those of ASCII.
bool is_wide_text(std::string_view head, size_t size, bool big_endian) {
  constexpr size_t kLeast = 4, kOthers = 20;  // one in so many is of ASCII: a space, a full stop
  const size_t count = head.size() / size;
  size_t ascii = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t c = number_at(head, i * size, size, big_endian);
    const bool space = c == '\t' || c == '\n' || c == '\r' || c == '\f';
    const bool is_surrogate = c >> 11 == 0xD800 >> 11;  // in UTF-16 half a character
    if ((c < ' ' && !space) || c > 0x10FFFF || (size == 4 && is_surrogate)) return false;
    ascii += c < 0x7F;
  }
  return count >= kLeast && ascii * kOthers >= count;
}

constexpr size_t kFewNuls = 3;  // in a text, by accident

// "UTF-16LE", as iconv calls it; empty: none of these.
std::string_view wide_encoding(std::string_view head, size_t nuls) {
  if (head.starts_with("\xFF\xFE\0\0"sv) || head.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (head.starts_with("\xFF\xFE"sv) || head.starts_with("\xFE\xFF"sv)) return "UTF-16";
  if (nuls <= kFewNuls) return {};
  if (is_wide_text(head, 4, false)) return "UTF-32LE";
  if (is_wide_text(head, 4, true)) return "UTF-32BE";
  if (is_wide_text(head, 2, false)) return "UTF-16LE";
  if (is_wide_text(head, 2, true)) return "UTF-16BE";
  return {};
}

// Eight bytes of length, then a JSON object.
bool is_safetensors(std::string_view head) {
  return head.size() > 8 && head[8] == '{' && head[5] == '\0' && head[6] == '\0' && head[7] == '\0';
}

size_t bytes_not_utf8(std::string_view text) {
  size_t count = 0;
  while (true) {
    text.remove_prefix(valid_utf8_prefix(text));
    if (text.empty()) return count;
    ++count;
    text.remove_prefix(1);
  }
}

}  // namespace

std::string why_not_text(std::string_view head) {
  const auto nuls = static_cast<size_t>(std::ranges::count(head, '\0'));
  const std::string_view encoding = wide_encoding(head, nuls);
  if (!encoding.empty()) {
    const std::string name(encoding);
    return "is " + name + " and not UTF-8: convert it (iconv -f " + name + " -t UTF-8)";
  }
  constexpr size_t kFew = 16;  // bytes that are no text in a small file
  const size_t wrong = bytes_not_utf8(head);
  for (const Mark& mark : kMarks) {
    const bool may_be_text = mark.letters && nuls == 0 && wrong <= kFew;
    if (!head.starts_with(mark.bytes) || may_be_text) continue;
    const bool told = mark.is.find(':') != std::string_view::npos;
    return "is " + std::string(mark.is) + (told ? "" : ": leave it out");
  }
  if (is_safetensors(head)) return "is a safetensors file: leave it out";
  if (nuls > kFewNuls && nuls * 1000 > head.size()) {
    return "holds NUL bytes: it is binary, or text to be cleaned of them";
  }
  if (wrong <= kFew || wrong * 4 <= head.size()) return {};
  return "is binary, or text of another encoding: " + std::to_string(wrong * 100 / head.size()) +
         " % of its bytes are no UTF-8; convert it (iconv -f ENCODING -t UTF-8)";
}

}  // namespace troupe
