#include "troupe/core/codes.h"

namespace troupe {

// LONG: one table, a case a code. A switch, so that the compiler misses a code without its
// paragraph.
std::string_view explain(Code code) {
  switch (code) {
    case Code::kBadSyntax:
      return "The recipe is not valid YAML, or is far larger or deeper than any recipe is. The "
             "message names line and column. Usual causes: a tab in the indentation, a quote or "
             "bracket that is not closed, a colon without a space after it.";
    case Code::kWrittenTwice:
      return "One section names the same field twice, and only one of the two could count. Delete "
             "one.";
    case Code::kNoSuchField:
      return "The section has no field of this name. The message offers the nearest name, or the "
             "section that does have it. Nothing in a recipe is ever ignored.";
    case Code::kNoSuchKind:
      return "A section whose field `kind` picks an implementation names one that does not exist. "
             "The message lists what there is, or the nearest name.";
    case Code::kBadValue:
      return "The field exists but cannot take this value: text for a number, a number out of "
             "range, a unit that is not known, yes or no where true or false is meant. The message "
             "says what is accepted.";
    case Code::kBadOverride:
      return "--set takes path=value, as in --set model.moe.top_k=8. The value may be any YAML; "
             "quote it for the shell where it has spaces or brackets.";
    case Code::kNoRecipe:
      return "The recipe cannot be read. The message holds the system's reason.";
    case Code::kBadRunFolder:
      return "The run's folder cannot be made or written: its name is taken by a file, a folder "
             "above is read-only, or a right is missing. Choose another checkpoint.dir.";
    case Code::kBadFaultPoint:
      return "TROUPE_FAULT, which makes faults for tests, does not read: it is "
             "point[#n][@rank][:step]=action, several joined by \";\". Unset it for a real run.";
    case Code::kRanksDiffer:
      return "The ranks were not started alike: another recipe, version, data or checkpoint on "
             "some "
             "of them. The message lists which ranks have what. Start all of them with the same "
             "command, from the same files.";
    case Code::kUnreadableData:
      return "A file of the data set or the tokenizer cannot be opened or read, or is not a "
             "regular "
             "file. The message holds path, offset and the system's reason.";
    case Code::kBadJson:
      return "A JSON document is malformed, names a field twice, or is far larger or deeper than "
             "any of ours is. The message names the file and the place in it.";
    case Code::kBadTokenFile:
      return "A token file is not what its format says: a wrong first word, a count that the file "
             "cannot hold, offsets that go back, a size that does not fit. The message names file, "
             "offset, what was found and what was expected. Usually the file was cut while it was "
             "copied: copy it again, or build it again.";
    case Code::kBadToken:
      return "A token id is not below the size of the vocabulary, or negative. The message names "
             "file, sequence and position. The data was made with another tokenizer, or the "
             "model's vocabulary is too small.";
    case Code::kTooFewTokens:
      return "A data set has fewer tokens than one sample needs, or none at all. The message says "
             "how many there are and how many are needed: use a shorter sequence or more data.";
    case Code::kDataChanged:
      return "A data file was cut, written to or replaced while the run was reading it. What the "
             "run saw before came from the old file: leave data files alone while they are in "
             "use.";
    case Code::kSourceUsedUp:
      return "A source of the mix has been read `max_epochs` times and the run asks for more. "
             "Raise max_epochs, lower the source's weight, or train on fewer tokens.";
    case Code::kBadDocument:
      return "A line of a JSONL file is not a document: no JSON object, the key is missing or "
             "holds no text, or the line is too long. The message names file and line. Mend it, "
             "or set `on_bad: skip`, which counts such lines and continues.";
    case Code::kBadShard:
      return "A shard of an MDS data set is damaged: its size or hash is not what index.json "
             "says, or an offset in it points elsewhere. Copy the shard again.";
    case Code::kOtherTokenizer:
      return "The data, or a teacher, was made with another tokenizer than the recipe's. The ids "
             "mean other words: build the data again, or name the tokenizer that made it.";
    case Code::kOutputExists:
      return "The output is there already, or another process is making it. Nothing is "
             "overwritten: choose another name, delete the old files, or set `replace: true`.";
    case Code::kBadTokenizer:
      return "A tokenizer's file is malformed, contradicts itself, or asks for a component that is "
             "not supported. The message names the file, the place in it, and what was expected. "
             "Nothing in such a file is ever ignored without a warning: ids would silently differ.";
    case Code::kNoTokenizer:
      return "The file or folder is there, and nothing in it is a tokenizer. The message lists "
             "what "
             "is recognized: by content, not by name.";
    case Code::kVocabTooLarge:
      return "The tokenizer has ids that the model's vocabulary does not. Set model.vocab to at "
             "least the tokenizer's size, or use the tokenizer that the model was made with.";
    case Code::kSlowPattern:
      return "A regular expression of the tokenizer's file took far more steps on a text than any "
             "sound pattern does. The pattern backtracks without end on such text: it must be "
             "written differently.";
    case Code::kUnreadableCheckpoint:
      return "A file of a checkpoint or a model folder cannot be opened or read, or is not a "
             "regular file. An older checkpoint of the same run may be intact: see `troupe "
             "inspect`.";
    case Code::kNoCheckpoint:
      return "There is no complete checkpoint where one has to be: no folder step-N whose "
             "manifest.json is whole and whose files have their sizes. The message lists the steps "
             "that were passed over and why. A copy that is still under way looks like this too.";
    case Code::kBadModelFile:
      return "A model file is not valid safetensors, or a folder of such files does not agree with "
             "its index. It is refused before anything is allocated. Copy or download it again; "
             "compare its size and checksum with the source's.";
    case Code::kDamagedCheckpoint:
      return "The bytes of a checkpoint are not those that were written: a checksum differs, or a "
             "shard belongs to another step or run. The message names file and tensor. An older "
             "step may be intact: checkpoint.resume: auto goes back to it by itself.";
    case Code::kStateMismatch:
      return "A checkpoint and the model or optimizer differ in names, shapes or element types; "
             "the message lists all of them. Load with the recipe that the run was started with, "
             "or waive names in checkpoint.waive_missing and checkpoint.waive_unused.";
    case Code::kOtherRun:
      return "The recipe or the data changed in a way that would make the resumed run another one. "
             "The message lists what was saved and what is now. Undo the change, or start anew "
             "with checkpoint.init_from, which takes the weights alone.";
    case Code::kForeignCheckpoint:
      return "The folder is a checkpoint of another program, in a format that needs Python's "
             "pickle, which can run any code and is never opened here. The message says how to "
             "turn it into safetensors.";
    case Code::kBadModelConfig:
      return "A config.json names an architecture or a setting that is not supported, or does not "
             "agree with the tensors beside it. The message names key, value and what is "
             "supported. A setting that would change the mathematics is never ignored.";
    case Code::kOtherFormat:
      return "The checkpoint was written by a newer version, in a format that this one does not "
             "know. Use at least the version that the message names.";
    case Code::kOtherBase:
      return "A checkpoint of adapters holds what was trained alone, and the checkpoint with the "
             "frozen weights, its base, is gone or has other weights now. The message lists where "
             "it was looked for. Name the place that it was moved to in checkpoint.init_from, or "
             "import the same weights again; `checkpoint.base: saved` keeps them in each "
             "checkpoint.";
    case Code::kNonFinite:
      return "The loss or a gradient is NaN or infinite. It was found before the update, so the "
             "weights are as they were; the message names what was computed wrong first. More than "
             "train.max_skips such steps in a row stop the run. Usual causes: a learning rate that "
             "is too large, no warm-up, damaged data, a passing fault of the hardware.";
    case Code::kRankLost:
      return "Another rank ended, or the connection to it broke, in the middle of an operation. "
             "The "
             "message names the operation and, where they are known, the ranks that no longer "
             "answer: what they wrote last says why. The run resumes from its last checkpoint.";
    case Code::kNoRendezvous:
      return "The ranks did not meet at the start: the port is taken, the address is wrong, or "
             "some "
             "ranks never came. The message says which. MASTER_ADDR and MASTER_PORT say where "
             "rank 0 waits; every rank needs its own RANK below WORLD_SIZE.";
    case Code::kRankHung:
      return "A rank is alive but has not moved for longer than run.hang_timeout: stopped, "
             "starved, "
             "or waiting for a disk. The message names it and what it was doing. Raise "
             "run.hang_timeout where steps really take that long.";
    case Code::kNoSpace:
      return "The disk or the user's quota is full. The message says how many bytes were needed "
             "and "
             "how many are free. What was published before is intact; make room and run the same "
             "command.";
    case Code::kFileFailed:
      return "The system refused to write, sync, rename or make a file. The message holds path, "
             "operation and reason. What was published before is intact.";
    case Code::kOldCpu:
      return "This build's CPU kernels use instructions that the processor does not have. Build "
             "with -DTROUPE_CPU_ARCH= (empty), or use a processor with AVX2 and FMA (2013 or "
             "later).";
    case Code::kCudaFailed:
      return "A CUDA call or kernel failed. The message names the call and CUDA's reason. A "
             "kernel's fault may surface at a later call: build with TROUPE_SYNC_LAUNCHES to see "
             "where it began.";
    case Code::kFolderInUse:
      return "Another process writes to the same run folder: two runs would overwrite each other. "
             "The message names its process and machine. Wait for it, stop it, or choose another "
             "checkpoint.dir.";
    case Code::kTooLarge:
      return "The run is forecast to need more than nine tenths of the memory (a warning, W7006), "
             "or more than there is (an error, E7006), or memory ran out anyway. The message "
             "holds the sizes and the cheapest changes that save some; `troupe plan` says where "
             "the memory goes.";
    case Code::kSlowMachine:
      return "`troupe bench machine --expect` measured rates under four fifths of those in the "
             "file, `troupe launch --check-machine` something out of its bound, or a spare of "
             "`troupe launch --spares` an operator whose result is wrong. "
             "A device that is hot, shared, capped in power or has another driver than the others "
             "is "
             "the usual cause; of links, a cable, or a group that does not take NVLink or RDMA. "
             "One slow rank makes all as slow: leave it out, or mend it.";
    case Code::kNoDevice:
      return "The recipe asks for a device that is not here, whose driver does not answer, or for "
             "which this build has no code. `run.device: auto` takes what there is (and warns with "
             "W7101 where GPUs are here that the build is not for); `troupe --version --verbose` "
             "lists the GPUs that it is for, docs/develop/BUILD.md says how to build for others.";
    case Code::kBrokenContract:
      return "A function of Troupe was called with arguments outside its contract. Reached through "
             "the program `troupe` this is a bug of ours: please report the message. From your own "
             "code, the message names the condition and the values.";
  }
  return {};
}

std::vector<Code> all_codes() {
  std::vector<Code> out;
  for (int number = 1000; number < 10000; ++number) {
    const Code code = static_cast<Code>(number);
    if (!explain(code).empty()) out.push_back(code);
  }
  return out;
}

std::optional<Code> code_of(std::string_view text) {
  for (const Code code : all_codes()) {
    if (to_text(code) == text) return code;
  }
  return std::nullopt;
}

}  // namespace troupe
