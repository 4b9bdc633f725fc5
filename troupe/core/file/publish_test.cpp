#include "troupe/core/file/publish.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/testing/fault_fs.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;
using testing::FaultFs;
using testing::TemporaryFolder;
using Action = FaultFs::Action;

// The names in a folder, without those of staging; sorted.
std::vector<std::string> results(const TemporaryFolder& folder) {
  std::vector<std::string> out;
  for (const auto& entry : stdfs::directory_iterator(folder.path())) {
    if (!is_staging(entry.path().filename().string())) out.push_back(entry.path().filename());
  }
  std::ranges::sort(out);
  return out;
}

bool has_leftovers(const TemporaryFolder& folder) {
  return results(folder).size() !=
         static_cast<size_t>(std::distance(stdfs::directory_iterator(folder.path()), {}));
}

Error error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  throw std::logic_error("nothing was thrown");
}

// Runs `save` in a process that dies at the n-th operation; false when it came to its end.
bool dies(int n, const std::function<void(Fs&)>& save) {
  const pid_t child = fork();
  if (child == 0) {
    FaultFs fs;
    fs.at = n, fs.action = Action::kDie;
    save(fs);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status) == 99;
}

void save_step(Fs& fs, const std::string& target) {
  const std::string staging = make_staging_directory(fs, target);
  NewFile shard(fs, staging + "/shard");
  shard.write("weights");
  shard.finish();
  if (fs.mkdir(staging + "/sub") != 0) throw Error("mkdir");
  NewFile manifest(fs, staging + "/sub/manifest");
  manifest.write("complete");
  manifest.finish();
  publish_directory(fs, staging, target);
}

TEST(Publish, ReplacesAFileInTheOrderThatSurvivesAPowerCut) {
  const TemporaryFolder folder;
  FaultFs fs;
  publish_file(fs, folder / "latest", "old");
  fs.log.clear();
  publish_file(fs, folder / "latest", "new one");
  EXPECT_EQ(read_file(folder / "latest"), "new one");
  ASSERT_EQ(fs.log.size(), 8u);
  const std::string staging = fs.log[0].substr(5);
  EXPECT_EQ(fs.log, (std::vector<std::string>{"open " + staging, "write 7", "fsync", "close",
                                              "rename " + staging + ' ' + (folder / "latest"),
                                              "open " + folder.path(), "fsync", "close"}));
  EXPECT_TRUE(is_staging(stdfs::path(staging).filename().string()));
}

TEST(Publish, AKillAtAnyOperationLeavesTheOldFileOrTheNew) {
  int n = 1;
  bool was_new = false;
  for (bool dead = true; dead; ++n) {
    const TemporaryFolder folder;
    Fs fs;
    publish_file(fs, folder / "latest", "old");
    dead = dies(n, [&](Fs& faulty) { publish_file(faulty, folder / "latest", "new"); });
    const std::string now = read_file(folder / "latest");
    EXPECT_TRUE(now == "new" || (now == "old" && !was_new)) << n << ": " << now;
    was_new = now == "new";
    EXPECT_EQ(results(folder), std::vector<std::string>{"latest"}) << n;
    remove_staging(fs, folder.path());
    EXPECT_FALSE(has_leftovers(folder)) << n;
  }
  EXPECT_EQ(n - 1, 9);  // all eight, and one run to the end
}

TEST(Publish, AKillAtAnyOperationLeavesAWholeFolderOrNone) {
  bool dead = true;
  for (int n = 1; dead; ++n) {
    const TemporaryFolder folder;
    dead = dies(n, [&](Fs& fs) { save_step(fs, folder / "step-7"); });
    if (!results(folder).empty()) {
      EXPECT_EQ(read_file(folder / "step-7/shard"), "weights") << n;
      EXPECT_EQ(read_file(folder / "step-7/sub/manifest"), "complete") << n;
    }
    EXPECT_EQ(results(folder).empty() && !dead, false) << n;
    Fs fs;
    EXPECT_EQ(remove_staging(fs, folder.path()), has_leftovers(folder) ? 1 : 0);
    save_step(fs, folder / "step-8");  // the next save is not in the way of the last
    EXPECT_EQ(read_file(folder / "step-8/shard"), "weights");
  }
}

TEST(Publish, AKillAtAnyOperationNeverLeavesAFolderHalfRemoved) {
  bool dead = true;
  for (int n = 1; dead; ++n) {
    const TemporaryFolder folder;
    Fs fs;
    save_step(fs, folder / "step-7");
    dead = dies(n, [&](Fs& faulty) { remove_published(faulty, folder / "step-7"); });
    if (!results(folder).empty()) {
      EXPECT_EQ(read_file(folder / "step-7/shard"), "weights") << n;
      EXPECT_EQ(read_file(folder / "step-7/sub/manifest"), "complete") << n;
    }
    remove_staging(fs, folder.path());
    EXPECT_FALSE(has_leftovers(folder));
  }
}

TEST(Publish, AFaultOfAnyOperationIsToldAndLeavesNothingHalfDone) {
  for (int n = 1; n <= 7; ++n) {  // the eighth, closing a synced folder, cannot matter
    const TemporaryFolder folder;
    FaultFs fs;
    fs.at = n, fs.error = EIO;
    const Error e = error_of([&] { publish_file(fs, folder / "x", "new"); });
    EXPECT_EQ(e.code(), Code::kFileFailed) << e.what();
    EXPECT_EQ(e.exit_class(), ExitClass::kResource);
    const std::string what = e.what();
    EXPECT_EQ(what.find(folder.path()), 0u) << what;
    EXPECT_NE(what.find("Input/output error"), std::string::npos) << what;
    EXPECT_FALSE(has_leftovers(folder)) << fs.log.back();
    EXPECT_EQ(results(folder).empty(), n < 6) << n;  // from the rename on it is there
  }
}

TEST(Publish, AFullDiskNamesBytesNeededAndFree) {
  const TemporaryFolder folder;
  FaultFs fs;
  NewFile file(fs, folder / "x");
  file.write("0123456789");
  fs.at = static_cast<int>(fs.log.size()) + 1, fs.error = ENOSPC;
  const Error e = error_of([&] { file.write("abc"); });
  const std::string what = e.what(), head = folder /
                                            "x: E7001 cannot write: No space left on device; "
                                            "10 bytes were written before, 3 more are needed "
                                            "now, ";
  EXPECT_EQ(what.substr(0, head.size()), head);
  EXPECT_NE(what.find(" are free"), std::string::npos) << what;
  EXPECT_EQ(e.code(), Code::kNoSpace);
  EXPECT_TRUE(results(folder).empty());
  EXPECT_THROW(file.write("more"), Error);
  EXPECT_THROW(file.finish(), Error);
}

TEST(Publish, AFullQuotaIsNotAFullDisk) {
  const TemporaryFolder folder;
  FaultFs fs;
  fs.at = 2, fs.error = EDQUOT;
  const std::string what = error_of([&] { publish_file(fs, folder / "x", "abc"); }).what();
  EXPECT_NE(what.find("E7001 cannot write: Disk quota exceeded"), std::string::npos) << what;
}

TEST(Publish, WritesAllWhateverTheSystemTakesAtATime) {
  const TemporaryFolder folder;
  FaultFs fs;
  fs.at = 2, fs.action = Action::kShort;
  publish_file(fs, folder / "x", "0123456789");
  EXPECT_EQ(read_file(folder / "x"), "0123456789");
  EXPECT_EQ(fs.log[2], "write 5");
  fs = {};
  fs.at = 2, fs.error = EINTR;
  publish_file(fs, folder / "x", "abc");
  EXPECT_EQ(read_file(folder / "x"), "abc");
}

TEST(Publish, ADeviceThatTakesNothingIsAFault) {
  Fs fs;
  const int fd = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  errno = 0;
  EXPECT_EQ(write_all(fs, fd, std::as_bytes(std::span("abc", 3))), 3u);
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(write_all(fs, fd, {}), 0u);
  ::close(fd);
}

// A real signal storm over a real pipe: interrupted and short writes as the system makes them.
TEST(Publish, SignalsLoseNoByte) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
  std::string text(1 << 20, '\0'), got;
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  // The child writes: its only thread is the one that the timer interrupts.
  const pid_t child = fork();
  if (child == 0) {
    const itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, nullptr);
    Fs fs;
    _exit(write_all(fs, ends[1], std::as_bytes(std::span(text))) == 0 ? 0 : 1);
  }
  ::close(ends[1]);
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    got.append(buffer, static_cast<size_t>(n));
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  ::close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(got, text);
}

TEST(Publish, ALimitOnFileSizesIsNamed) {
  const TemporaryFolder folder;
  const pid_t child = fork();  // A limit is not lifted again.
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    Fs fs;
    const std::string what =
        error_of([&] { publish_file(fs, folder / "x", std::string(10000, 'x')); }).what();
    const std::string told =
        "x: E7002 cannot write: File too large; raise the limit on file sizes (ulimit -f)";
    _exit(what == folder.path() + '/' + told ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(results(folder).empty());
  EXPECT_FALSE(has_leftovers(folder));
}

TEST(Publish, RefusesAPathThatCannotBe) {
  const TemporaryFolder folder;
  Fs fs;
  publish_file(fs, folder / "plain", "x");
  EXPECT_THROW(publish_file(fs, folder / "none/x", "a"), Error);
  EXPECT_THROW(publish_file(fs, folder / "plain/x", "a"), Error);
  EXPECT_THROW(publish_file(fs, "/proc/x", "a"), Error);
  EXPECT_THROW(make_staging_directory(fs, folder / "none/step"), Error);
  EXPECT_THROW(remove_staging(fs, folder / "none"), Error);
}

TEST(Publish, NeverOverwritesAFolderOrFollowsAPlantedLink) {
  const TemporaryFolder folder;
  Fs fs;
  save_step(fs, folder / "step-7");
  const Error e = error_of([&] { save_step(fs, folder / "step-7"); });
  EXPECT_NE(std::string(e.what()).find("File exists"), std::string::npos) << e.what();
  stdfs::create_directory(folder / "step-8");  // a plain rename would replace an empty one
  EXPECT_THROW(save_step(fs, folder / "step-8"), Error);
  stdfs::create_symlink(folder / "elsewhere", folder / "link");
  EXPECT_THROW(NewFile(fs, folder / "link"), Error);
  publish_file(fs, folder / "link", "x");
  EXPECT_FALSE(stdfs::is_symlink(folder / "link"));
  EXPECT_FALSE(stdfs::exists(folder / "elsewhere"));
}

// Nodes of its own, as /dev/null (1, 3) and /dev/full (1, 7) are; false where none may be made.
bool make_device(const std::string& path, unsigned minor) {
  return ::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, minor)) == 0;
}

bool is_device(const std::string& path) {
  return stdfs::is_character_file(stdfs::symlink_status(path));
}

TEST(Output, ADeviceIsWrittenToAndStaysOne) {
  const TemporaryFolder folder;
  if (!make_device(folder / "null", 3) || !make_device(folder / "full", 7)) {
    GTEST_SKIP() << "device nodes may not be made here";
  }
  const int may_open = ::open((folder / "null").c_str(), O_WRONLY);
  if (may_open < 0) GTEST_SKIP() << "devices may not be opened in this folder (nodev)";
  ::close(may_open);
  stdfs::create_symlink("null", folder / "link");
  Fs fs;
  for (const char* name : {"null", "link"}) write_output(fs, folder / name, "recipe");
  const Error full = error_of([&] { write_output(fs, folder / "full", "recipe"); });
  EXPECT_EQ(full.code(), Code::kNoSpace) << full.what();
  EXPECT_TRUE(is_device(folder / "null"));
  EXPECT_TRUE(is_device(folder / "full"));
  EXPECT_TRUE(stdfs::is_symlink(folder / "link"));
  EXPECT_EQ(results(folder), (std::vector<std::string>{"full", "link", "null"}));
  EXPECT_FALSE(has_leftovers(folder));
}

TEST(Output, NamesOfOursNeverReplaceADevice) {
  const TemporaryFolder folder;
  if (!make_device(folder / "null", 3)) GTEST_SKIP() << "device nodes may not be made here";
  Fs fs;
  const Error file = error_of([&] { publish_file(fs, folder / "null", "x"); });
  EXPECT_EQ(file.code(), Code::kFileFailed) << file.what();
  const std::string staging = make_staging_directory(fs, folder / "null");
  const Error whole = error_of([&] { replace_directory(fs, staging, folder / "null"); });
  EXPECT_EQ(whole.code(), Code::kFileFailed) << whole.what();
  EXPECT_TRUE(is_device(folder / "null"));
}

TEST(Output, APipeGetsTheBytes) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const int reader = ::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  Fs fs;
  write_output(fs, folder / "pipe", "recipe");
  char got[16];
  const ssize_t n = ::read(reader, got, sizeof(got));
  ::close(reader);
  EXPECT_EQ(std::string_view(got, n < 0 ? 0 : static_cast<size_t>(n)), "recipe");
  EXPECT_EQ(results(folder), std::vector<std::string>{"pipe"});
  EXPECT_THROW(publish_file(fs, folder / "pipe", "x"), Error);  // where only a file makes sense
}

TEST(Output, ALinkIsFollowedAndStays) {
  const TemporaryFolder folder;
  stdfs::create_directory(folder / "far");
  Fs fs;
  publish_file(fs, folder / "far/file", "old");
  stdfs::create_symlink("far/file", folder / "near");
  stdfs::create_symlink("near", folder / "further");
  stdfs::create_symlink(folder / "far/new", folder / "to_nothing");
  write_output(fs, folder / "further", "new");
  write_output(fs, folder / "to_nothing", "made");
  EXPECT_EQ(read_file(folder / "far/file"), "new");
  EXPECT_EQ(read_file(folder / "far/new"), "made");
  for (const char* name : {"near", "further", "to_nothing"}) {
    EXPECT_TRUE(stdfs::is_symlink(folder / name)) << name;
  }
  stdfs::create_symlink("circle", folder / "circle");
  EXPECT_THROW(write_output(fs, folder / "circle", "x"), Error);
  EXPECT_THROW(write_output(fs, folder / "far", "x"), Error);  // a folder
  write_output(fs, folder / "plain", "x");
  EXPECT_EQ(read_file(folder / "plain"), "x");
}

// Standard output as a shell gives it to a program: a file that has a name.
TEST(Output, StandardOutputIsWrittenToUnderAllItsNames) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const int fd = ::open((folder / "said").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (::dup2(fd, STDOUT_FILENO) < 0) _exit(1);
    Fs fs;
    for (const std::string& name : {std::string("-"), folder / "said"}) {
      if (!is_standard_output(name)) _exit(2);
      write_output(fs, name, "once\n");
    }
    _exit(is_standard_output(folder / "other") ? 3 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(folder / "said"), "once\nonce\n");
  EXPECT_FALSE(has_leftovers(folder));
}

TEST(Publish, AnUnfinishedFileIsRemovedAndALinkIsNotFollowedWhenRemoving) {
  const TemporaryFolder folder;
  Fs fs;
  {
    NewFile file(fs, folder / "x");
    file.write("half");
    EXPECT_EQ(file.size(), 4);
  }
  EXPECT_TRUE(results(folder).empty());
  publish_file(fs, folder / "kept", "x");
  stdfs::create_directory(folder / "step");
  stdfs::create_directory_symlink(folder.path(), folder / "step/up");
  remove_published(fs, folder / "step");
  EXPECT_EQ(results(folder), std::vector<std::string>{"kept"});
}

TEST(Publish, WorksWithAPathOfItsNameAloneAndALongOne) {
  const TemporaryFolder folder;
  const stdfs::path before = stdfs::current_path();
  stdfs::current_path(folder.path());
  Fs fs;
  const std::string name(250, 'n');
  publish_file(fs, name, "x");
  EXPECT_EQ(read_file(name), "x");
  stdfs::current_path(before);
  EXPECT_GT(free_bytes(folder.path()), 0);
  EXPECT_EQ(free_bytes(folder / "none"), -1);
}

}  // namespace
}  // namespace troupe
