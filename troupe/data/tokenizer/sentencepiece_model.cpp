#include "troupe/data/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstring>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/decoder.h"
#include "troupe/data/tokenizer/token_table.h"

namespace troupe {
namespace {

using Model = SentencePieceModel;
constexpr size_t kMostPieces = size_t{1} << 24;
constexpr size_t kLongestReplacement = 256;  // bytes, of what stands for some characters; NFKC: 33

struct Field {
  uint64_t number = 0;
  int wire = 0;
  uint64_t value = 0;      // of a varint or a fixed number
  std::string_view bytes;  // of a string or a message
};

// The fields of one message, one after the other.
class Message {
 public:
  Message(std::string_view bytes, const std::string& file, std::string_view whole)
      : bytes_(bytes), file_(file), whole_(whole) {}

  bool next(Field& out) {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    out = {tag >> 3, static_cast<int>(tag & 7), 0, {}};
    if (out.number == 0) refuse("a field has the number 0");
    switch (out.wire) {
      case 0: out.value = varint(); break;
      case 1: out.value = fixed(8); break;
      case 2: out.bytes = take(varint()); break;
      case 5: out.value = fixed(4); break;
      default: refuse("a field has the wire type", out.wire, ", which there is not");
    }
    return true;
  }

  // The field as it must be.
  Message message(const Field& f) const { return {text(f), file_, whole_}; }
  std::string_view text(const Field& f) const {
    if (f.wire != 2) refuse("field", f.number, "is a number where bytes are expected");
    return f.bytes;
  }
  int64_t integer(const Field& f) const {
    if (f.wire != 0) refuse("field", f.number, "is not the integer that is expected");
    return static_cast<int64_t>(f.value);
  }
  float real(const Field& f) const {
    if (f.wire != 5) refuse("field", f.number, "is not the float that is expected");
    float out = 0;
    const auto bits = static_cast<uint32_t>(f.value);
    std::memcpy(&out, &bits, sizeof(out));
    return out;
  }

  template <class... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    fail(Code::kBadTokenizer, file_ + ": byte " + std::to_string(bytes_.data() - whole_.data()),
         what...);
  }

 private:
  uint64_t varint() {
    uint64_t out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      if (shift == 63 && byte > 1) break;
      out |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return out;
    }
    refuse("a number has more than 64 bits");
  }
  uint64_t fixed(size_t size) {
    uint64_t out = 0;
    std::memcpy(&out, take(size).data(), size);
    return out;
  }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size()) {
      refuse("the file ends", size - bytes_.size(), "bytes before the field does");
    }
    const std::string_view out = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return out;
  }

  std::string_view bytes_;
  const std::string& file_;
  const std::string_view whole_;
};

Model::Piece read_piece(Message message) {
  Model::Piece out;
  Field f;
  while (message.next(f)) {
    if (f.number == 1) out.text = message.text(f);
    if (f.number == 2) out.score = message.real(f);
    if (f.number == 3) {
      const int64_t type = message.integer(f);
      if (type < 1 || type > 6)
        message.refuse("a piece is of type", type, "where there are 1 to 6");
      out.type = static_cast<Model::Type>(type);
    }
  }
  return out;
}

struct Trainer {
  int64_t model_type = 1, bos = 1, eos = 2, pad = -1;
  bool byte_fallback = false, suffix_spaces = false;
};

void read_trainer(Message message, Trainer& out) {
  Field f;
  while (message.next(f)) {
    switch (f.number) {
      case 3: out.model_type = message.integer(f); break;
      case 24: out.suffix_spaces = message.integer(f) != 0; break;
      case 35: out.byte_fallback = message.integer(f) != 0; break;
      case 41: out.bos = static_cast<int32_t>(message.integer(f)); break;
      case 42: out.eos = static_cast<int32_t>(message.integer(f)); break;
      case 43: out.pad = static_cast<int32_t>(message.integer(f)); break;
      default: break;
    }
  }
  if (out.model_type < 1 || out.model_type > 4) {
    message.refuse("model_type is", out.model_type, "where there are 1 to 4");
  }
}

// A double array of 32-bit units, as Darts-clone lays it out. From each node the library looks at
// the unit for whatever byte the text holds, so all 256 of them must be inside.
class CharacterTable {
 public:
  CharacterTable(std::string_view units, size_t replacements)
      : units_(units), replacements_(replacements) {}

  bool leads_outside() const {
    std::vector<bool> seen(count());
    std::vector<uint32_t> waiting = {0};
    seen[0] = true;
    while (!waiting.empty()) {
      const uint32_t node = waiting.back();
      waiting.pop_back();
      const uint32_t unit = at(node);
      const uint64_t base = node ^ offset(unit);
      if ((base | 0xFF) >= count()) return true;
      if ((unit >> 8 & 1) != 0 && (at(base) & 0x7FFFFFFF) >= replacements_) return true;
      for (uint64_t byte = 1; byte < 256; ++byte) {
        const uint64_t child = base ^ byte;
        if ((at(child) & 0x800000FF) != byte || seen[child]) continue;
        seen[child] = true;
        waiting.push_back(static_cast<uint32_t>(child));
      }
    }
    return false;
  }

 private:
  size_t count() const { return units_.size() / 4; }
  uint32_t at(uint64_t i) const {
    uint32_t out = 0;
    std::memcpy(&out, units_.data() + 4 * i, 4);
    return out;
  }
  static uint64_t offset(uint32_t unit) { return uint64_t{unit >> 10} << ((unit & 0x200) >> 6); }

  const std::string_view units_;
  const size_t replacements_;
};

void check_characters(const Message& message, std::string_view map) {
  if (map.empty()) return;
  uint32_t size = 0;
  if (map.size() > 4) std::memcpy(&size, map.data(), 4);
  if (map.size() <= 4 || size < 1024 || size % 4 != 0 || size > map.size() - 4) {
    message.refuse("precompiled_charsmap has", map.size(), "bytes and a table of", size);
  }
  const std::string_view replacements = map.substr(4 + size);
  if (replacements.empty() || replacements.back() != '\0') {
    message.refuse("precompiled_charsmap has replacements that do not end in NUL");
  }
  size_t longest = 0;
  for (size_t at = 0; at < replacements.size();) {
    const size_t end = replacements.find('\0', at);
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  if (longest > kLongestReplacement) {
    message.refuse("precompiled_charsmap replaces by", longest, "bytes, where", kLongestReplacement,
                   "at most are supported");
  }
  if (!is_utf8(replacements))
    message.refuse("precompiled_charsmap has replacements that are no UTF-8");
  if (CharacterTable(map.substr(4, size), replacements.size()).leads_outside()) {
    message.refuse("precompiled_charsmap has a table that leads outside itself");
  }
}

void read_normalizer(Message message, Model& out) {
  Field f;
  while (message.next(f)) {
    switch (f.number) {
      case 2:
        check_characters(message, message.text(f));
        out.changes_characters = !message.text(f).empty();
        break;
      case 3: out.add_prefix = message.integer(f) != 0; break;
      case 4: out.drop_spaces = message.integer(f) != 0; break;
      case 5: out.mark_spaces = message.integer(f) != 0; break;
      default: break;
    }
  }
}

class Checker {
 public:
  Checker(const Model& model, const std::string& file) : model_(model), file_(file) {}

  void run() {
    for (size_t id = 0; id < model_.pieces.size(); ++id) check(id, model_.pieces[id]);
    if (unknown_ != 1) fault("has", unknown_, "pieces of type UNKNOWN, and 1 is expected");
    if (model_.byte_fallback && !bytes_.all()) {
      fault("has byte_fallback and", bytes_.count(), "of the 256 byte pieces");
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void fault(const Args&... what) const {
    fail(Code::kBadTokenizer, file_, what...);
  }

  void check(size_t id, const Model::Piece& piece) {
    const std::string name = "piece " + std::to_string(id);
    if (piece.text.empty()) fault(name, "is empty");
    if (piece.text.size() > kLongestToken) {
      fault(name, "has", piece.text.size(), "bytes;", kLongestToken, "at most are supported");
    }
    if (piece.text.find('\0') != std::string::npos || !is_utf8(piece.text)) {
      fault(name, "is not UTF-8, or has a NUL");
    }
    if (!std::isfinite(piece.score)) fault(name, "has the score", piece.score);
    if (!seen_.add(piece.text, static_cast<TokenId>(id))) {
      fault(name, "is", to_text(piece.text) + ", as is piece", seen_.find(piece.text));
    }
    if (piece.type == Model::Type::kUnknown) ++unknown_;
    if (piece.type != Model::Type::kByte) return;
    const int byte = byte_of_token(piece.text);
    if (!model_.byte_fallback) fault(name, "is of type BYTE, and byte_fallback is off");
    if (byte < 0) fault(name, "is of type BYTE and", to_text(piece.text));
    bytes_.set(static_cast<size_t>(byte));
  }

  const Model& model_;
  const std::string& file_;
  TokenTable seen_;
  int unknown_ = 0;
  std::bitset<256> bytes_;
};

// An id that the model says, where there is such a control piece.
TokenId special_id(const Model& model, int64_t id) {
  const bool there = id >= 0 && id < static_cast<int64_t>(model.pieces.size());
  return there && model.pieces[static_cast<size_t>(id)].type == Model::Type::kControl
             ? static_cast<TokenId>(id)
             : -1;
}

}  // namespace

SentencePieceModel check_sentencepiece(std::string_view bytes, const std::string& file) {
  Model model;
  Model denormalizer;
  Trainer trainer;
  Message message(bytes, file, bytes);
  Field f;
  while (message.next(f)) {
    if (f.number == 1) {
      model.pieces.push_back(read_piece(message.message(f)));
      if (model.pieces.size() > kMostPieces) message.refuse("more than", kMostPieces, "pieces");
    }
    if (f.number == 2) read_trainer(message.message(f), trainer);
    if (f.number == 3) read_normalizer(message.message(f), model);
    if (f.number == 5) read_normalizer(message.message(f), denormalizer);  // checked, no more
  }
  if (model.pieces.empty())
    fail(Code::kBadTokenizer, file, "has no pieces: no SentencePiece model");
  model.model_type = trainer.model_type;
  model.byte_fallback = trainer.byte_fallback;
  model.suffix_spaces = trainer.suffix_spaces;
  Checker(model, file).run();
  const auto is_unknown = [](const Model::Piece& p) { return p.type == Model::Type::kUnknown; };
  const auto unknown = std::find_if(model.pieces.begin(), model.pieces.end(), is_unknown);
  model.special = {.bos = special_id(model, trainer.bos),
                   .eos = special_id(model, trainer.eos),
                   .pad = special_id(model, trainer.pad),
                   .unk = static_cast<TokenId>(unknown - model.pieces.begin())};
  return model;
}

}  // namespace troupe
