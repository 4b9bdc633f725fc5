// The short codes of faults ("E2003") and the exit classes that they belong to. A new code is a
// line here and a paragraph in codes.cpp; a code that was released keeps its meaning.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// What the process returns. 0: finished, or stopped cleanly after a saved checkpoint.
enum class ExitClass {
  kUsage = 2,       // command line, recipe
  kData = 3,        // data, tokenizer
  kCheckpoint = 4,  // checkpoint, model file
  kNumeric = 5,     // NaN or Inf that does not go away
  kPeer = 6,        // a rank lost or hung, communication
  kResource = 7,    // memory, disk, device
  kBug = 70,        // ours
};

// The first digit is the exit class, 9 that of bugs.
enum class Code {
  kBadSyntax = 2001,
  kWrittenTwice = 2002,
  kNoSuchField = 2003,
  kNoSuchKind = 2004,
  kBadValue = 2005,
  kBadOverride = 2006,
  kNoRecipe = 2007,
  kBadRunFolder = 2008,
  kBadFaultPoint = 2009,
  kRanksDiffer = 2010,
  kUnreadableData = 3001,
  kBadJson = 3002,
  kBadTokenFile = 3101,
  kBadToken = 3102,
  kTooFewTokens = 3103,
  kDataChanged = 3104,
  kSourceUsedUp = 3105,
  kBadDocument = 3106,
  kBadShard = 3107,
  kOtherTokenizer = 3108,
  kOutputExists = 3109,
  kBadTokenizer = 3201,
  kNoTokenizer = 3202,
  kVocabTooLarge = 3203,
  kSlowPattern = 3204,
  kUnreadableCheckpoint = 4001,
  kNoCheckpoint = 4002,
  kBadModelFile = 4003,
  kDamagedCheckpoint = 4004,
  kStateMismatch = 4005,
  kOtherRun = 4006,
  kForeignCheckpoint = 4007,
  kBadModelConfig = 4008,
  kOtherFormat = 4009,
  kOtherBase = 4010,
  kNonFinite = 5001,
  kRankLost = 6001,
  kNoRendezvous = 6002,
  kRankHung = 6003,
  kNoSpace = 7001,
  kFileFailed = 7002,
  kOldCpu = 7003,
  kCudaFailed = 7004,
  kFolderInUse = 7005,
  kTooLarge = 7006,
  kNoDevice = 7101,
  kSlowMachine = 7102,
  kBrokenContract = 9001,
};

constexpr ExitClass exit_class(Code code) {
  const int digit = static_cast<int>(code) / 1000;
  return digit == 9 ? ExitClass::kBug : static_cast<ExitClass>(digit);
}

inline std::string to_text(Code code) {
  return 'E' + std::to_string(static_cast<int>(code));
}

// The code of a warning, which stops nothing: "W7006".
inline std::string warning_text(Code code) {
  return 'W' + std::to_string(static_cast<int>(code));
}

// What the fault means and what to do about it: one paragraph.
std::string_view explain(Code code);

std::optional<Code> code_of(std::string_view text);  // "E2003"; nothing if there is no such code
std::vector<Code> all_codes();                       // ascending

}  // namespace troupe
