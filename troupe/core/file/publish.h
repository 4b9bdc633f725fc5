// Writing files and folders that appear whole or not at all.
//
// The order is always: write under a staging name in the same folder; fsync the file; rename; fsync
// the folder. So after a crash or a power cut at any point, the name holds the old content or the
// new, all of it. What a crash leaves behind has a staging name (is_staging), which no reader takes
// for a result and remove_staging deletes.
//
// Faults are Errors of class resource that name path, operation and the system's reason; if the
// disk or the quota is full (E7001) also the bytes still to be written and those that are free. A
// limit on file sizes (ulimit -f) shows as an Error only where the program ignores SIGXFSZ.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

// The operations that change a disk, as the system calls are: -1 and errno on failure. A test
// derives from it to record, to fail or to die at the n-th; everybody else passes a plain Fs.
class Fs {
 public:
  virtual ~Fs() = default;
  virtual int open(const std::string& path, int flags);
  virtual ssize_t write(int fd, const void* data, size_t size);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int rename(const std::string& from, const std::string& to);      // replaces `to`
  virtual int rename_new(const std::string& from, const std::string& to);  // EEXIST if there is one
  virtual int exchange(const std::string& a, const std::string& b);  // each gets the other's name
  virtual int unlink(const std::string& path);
  virtual int mkdir(const std::string& path);
  virtual int rmdir(const std::string& path);
};

// A file that is being written, at a path where there was none (nor a symbolic link).
class NewFile {
 public:
  // Errors name the file `name`: the one that it will be where `path` is a staged file.
  NewFile(Fs& fs, std::string path, std::string name);
  NewFile(Fs& fs, const std::string& path) : NewFile(fs, path, path) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();  // an unfinished file is removed

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  int64_t size() const { return size_; }
  // On return the content is on the disk; the name is after sync_directory. If it throws, the file
  // is gone: what a failed fsync left is unknown, and a second one would claim success. Write it
  // anew.
  void finish();

 private:
  void fail_and_remove(const std::string& operation, size_t bytes_left);

  Fs& fs_;
  std::string path_, name_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// Makes the output that a user has named hold `bytes`. `-` is standard output, and so is a path
// that leads to what standard output is (/dev/stdout into a file); likewise standard error. A pipe,
// a terminal and other character devices are written to as they are: nothing is staged or renamed.
// A link is followed, also one that leads to nothing yet, and the file that it leads to is
// published. A folder, a block device and a socket are refused (E7002).
void write_output(Fs& fs, const std::string& path, std::string_view bytes);
bool is_standard_output(
    const std::string& path);  // of write_output: not the same as what is printed

// What a link leads to, through further links, though nothing be there; another path as it is.
std::string followed_link(const std::string& path);

// E7002 where the path is a pipe, a device or a socket: a rename would replace it for all who use
// it.
void require_replaceable(const std::string& path);

// Makes `path` hold `bytes`, replacing what was there (a symbolic link itself, not its target): for
// the names that this program chooses, in folders where others may have planted links (F141). What
// is no file, link or folder is refused as require_replaceable does.
void publish_file(Fs& fs, const std::string& path, std::string_view bytes);
// The same for content that `write` gives in pieces; it does not finish() the file.
void publish_file(Fs& fs, const std::string& path, const std::function<void(NewFile&)>& write);

// A new empty folder with a staging name beside `target`, to be filled with NewFiles.
std::string make_staging_directory(Fs& fs, const std::string& target);

// Renames the staging folder to `target`, which must not exist. Its files must be finished; the
// folders in it are synced here. If it throws before the rename, the staging folder stays.
void publish_directory(Fs& fs, const std::string& staging, const std::string& target);

// The same where `target` exists: the two change their names in one step, then the old content, now
// under the staging name, is removed. E7002 on a disk that cannot do it, and where `target` is a
// pipe, a device or a socket.
void replace_directory(Fs& fs, const std::string& staging, const std::string& target);

// The opposite: renames it to a staging name first, so that a half deleted folder is never seen.
void remove_published(Fs& fs, const std::string& path);

bool is_staging(std::string_view name);  // of a file or folder, without its path

// Deletes a file, or a folder with its contents, that has a staging name, so that none reads it.
void remove_tree(Fs& fs, const std::string& path);

// Deletes all that is left under staging names in the folder; returns how many. For a time when
// nobody else writes there: at the start of a run, under its lock.
int64_t remove_staging(Fs& fs, const std::string& directory);

void sync_directory(Fs& fs, const std::string& path);
int64_t free_bytes(const std::string& path);  // of the disk that holds it; -1: unknown

// Writes all of it, whatever the system takes at a time and however often a signal interrupts it;
// returns the bytes that are left: not 0 means failure, with its errno.
size_t write_all(Fs& fs, int fd, std::span<const std::byte> bytes);

}  // namespace troupe
