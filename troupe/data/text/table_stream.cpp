#include "troupe/data/text/table_stream.h"

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/file/child_output.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/python_program.h"

namespace troupe {
namespace {

// A batch of rows is in memory. What JSON has no type for, as a date or bytes, is what Python prints.
constexpr const char* kScript = R"py(
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import json
path, key = sys.argv[1:]
try:
    import pyarrow
    import pyarrow.parquet
except ImportError as e:
    sys.exit(f"is a table, which Python's pyarrow reads: pip install pyarrow ({sys.executable}: {e})")
row = 0
try:
    with open(path, "rb") as head:
        begin = head.read(6)
    if begin.startswith(b"PAR1"):
        table = pyarrow.parquet.ParquetFile(path, pre_buffer=False)
        names = table.schema_arrow.names
        batches = table.iter_batches(batch_size=256, columns=[key] if key else None) if not key or key in names else ()
    else:
        source = pyarrow.memory_map(path)
        opened = pyarrow.ipc.open_file(source) if begin == b"ARROW1" else pyarrow.ipc.open_stream(source)
        names = opened.schema.names
        batches = (opened.get_batch(i) for i in range(opened.num_record_batches)) if begin == b"ARROW1" else opened
    if key and key not in names:
        sys.exit(f"has no column {key}; its columns are {', '.join(names)}; --key names the one to read")
    for batch in batches:
        if key:
            batch = batch.select([key])
        for at in range(0, batch.num_rows, 256):
            for values in batch.slice(at, 256).to_pylist():
                row += 1
                sys.stdout.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()
except BrokenPipeError:
    pass
except Exception as e:
    sys.exit(f"row {row + 1}: {e}")
)py";

class TableStream final : public TextStream {
 public:
  TableStream(const std::string& path, const std::string& key)
      : file_(path), child_({python_program(), "-X", "utf8", "-c", kScript, path, key}) {}

  size_t read(std::span<char> out) override {
    const size_t count = child_.read(out);
    if (count == out.size()) return count;
    const ChildEnd end = child_.wait();
    if (end.never_began) {
      fail(Code::kUnreadableData, file_.path(), "is a table, which Python's pyarrow reads, and",
           python_program(), "does not start:", end.said,
           "; install it, or name one that has pyarrow in TROUPE_PYTHON");
    }
    if (!end.ok) fail(Code::kUnreadableData, file_.path(), end.said);
    return count;
  }
  // Python does not say how far it is.
  int64_t consumed(int64_t bytes) const override { return std::min(bytes, file_.size()); }
  void require_unchanged() const override { file_.require_unchanged(Code::kDataChanged); }

 private:
  InputFile file_;
  ChildOutput child_;
};

}  // namespace

std::unique_ptr<TextStream> table_rows(const std::string& path, const std::string& key) {
  return std::make_unique<TableStream>(path, key);
}

}  // namespace troupe
