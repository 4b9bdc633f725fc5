// The protobuf of a SentencePiece .model, read and checked by hand: libsentencepiece trusts what it
// is given, down to offsets in its tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

struct SentencePieceModel {
  enum class Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;  // by id
  int64_t model_type = 1;     // 1 unigram, 2 BPE, 3 word, 4 character
  bool byte_fallback = false;
  // What becomes of a text before it is cut.
  bool changes_characters = false;  // by a table: NFKC, for instance
  bool add_prefix = true;           // a space before it
  bool drop_spaces = true;          // at both ends, and all but one of a run
  bool mark_spaces = true;          // U+2581 stands for a space
  bool suffix_spaces = false;       // a word's space is behind it
  SpecialIds special;
};

// Throws E3101 with `file` and the place: a message that is cut or whose lengths or numbers run
// over; an empty piece, one longer than kLongestToken, one given twice, with a NUL or not UTF-8;
// not exactly one UNKNOWN; a BYTE piece without byte_fallback or that is not <0x00> to <0xFF>;
// byte_fallback without all 256; a score that is no number; a table of characters
// (precompiled_charsmap) that leads outside itself or has replacements of more than 256 bytes.
// Unknown fields are passed over.
SentencePieceModel check_sentencepiece(std::string_view bytes, const std::string& file);

}  // namespace troupe
