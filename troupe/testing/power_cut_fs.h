// A file system that remembers what it was asked, and tells every state that the disk may be in
// after a power cut at any moment. What POSIX promises is kept and nothing more: a file's bytes are
// sure once it is synced, a name once its folder is; what is not sure is there or not, and bytes
// may be lost, zeros, or half there.
//   PowerCutFs fs(folder);
//   ...
//   fs.for_each_state([&](const Tree& tree) { write_tree(tree, other); });
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troupe/core/file/publish.h"

namespace troupe::testing {

using Tree = std::map<std::string, std::optional<std::string>>;  // path to content; none: a folder

inline void write_tree(const Tree& tree, const std::string& folder) {
  for (const auto& [path, content] : tree) {
    if (!content) {
      std::filesystem::create_directories(folder + '/' + path);
    } else {
      std::ofstream(folder + '/' + path, std::ios::binary) << *content;
    }
  }
}

class PowerCutFs : public Fs {
 public:
  // What is in `root` now is on the disk for good. Single-threaded.
  explicit PowerCutFs(std::string root) : root_(std::move(root)) { read(root_); }

  int open(const std::string& path, int flags) override {
    const int fd = Fs::open(path, flags);
    if (fd < 0) return fd;
    if ((flags & O_CREAT) != 0) ops_.push_back({Op::kAdd, path, "", -1, ""});
    ops_.push_back({Op::kOpen, path, "", fd, ""});
    return fd;
  }
  ssize_t write(int fd, const void* data, size_t size) override {
    const ssize_t n = Fs::write(fd, data, size);
    if (n > 0) {
      const std::string bytes(static_cast<const char*>(data), static_cast<size_t>(n));
      ops_.push_back({Op::kWrite, "", "", fd, bytes});
    }
    return n;
  }
  int fsync(int fd) override { return note({Op::kSync, "", "", fd, ""}, Fs::fsync(fd)); }
  int rename(const std::string& from, const std::string& to) override {
    return note({Op::kRename, from, to, -1, ""}, Fs::rename(from, to));
  }
  int rename_new(const std::string& from, const std::string& to) override {
    return note({Op::kRename, from, to, -1, ""}, Fs::rename_new(from, to));
  }
  int exchange(const std::string& a, const std::string& b) override {
    return note({Op::kExchange, a, b, -1, ""}, Fs::exchange(a, b));
  }
  int unlink(const std::string& path) override {
    return note({Op::kRemove, path, "", -1, ""}, Fs::unlink(path));
  }
  int mkdir(const std::string& path) override {
    return note({Op::kAddFolder, path, "", -1, ""}, Fs::mkdir(path));
  }
  int rmdir(const std::string& path) override {
    return note({Op::kRemove, path, "", -1, ""}, Fs::rmdir(path));
  }

  size_t num_operations() const { return ops_.size(); }

  // Each state once; returns how many there are.
  size_t for_each_state(const std::function<void(const Tree&)>& f) const {
    std::set<Tree> seen;
    for (size_t n = 0; n <= ops_.size(); ++n) {
      Disk disk{nodes_, {}, {}};
      for (size_t i = 0; i < n; ++i) apply(disk, ops_[i]);
      const size_t names = disk.pending.size() > 10 ? 10 : disk.pending.size();
      for (size_t kept = 0; kept < (size_t{1} << names); ++kept) {
        for (int bytes = 0; bytes < 4; ++bytes) {
          Tree tree;
          list(after_cut(disk, kept), 0, "", bytes, tree);
          if (seen.insert(tree).second) f(tree);
        }
      }
    }
    return seen.size();
  }

 private:
  struct Op {
    enum Kind { kOpen, kWrite, kSync, kAdd, kAddFolder, kRename, kExchange, kRemove } kind;
    std::string path, other;
    int fd;
    std::string bytes;
  };
  struct Node {
    bool folder = false;
    std::map<std::string, size_t> live, sure;  // a folder's names
    std::string bytes;
    size_t sure_bytes = 0;
  };
  struct Pending {  // a change of names that is not synced
    Op::Kind kind;
    size_t folder;
    std::string name, other;
    size_t node;
  };
  struct Disk {
    std::vector<Node> nodes;
    std::map<int, size_t> open;
    std::vector<Pending> pending;
  };

  int note(Op op, int status) {
    if (status == 0) ops_.push_back(std::move(op));
    return status;
  }

  // Adds what is at `path`; returns its number.
  size_t read(const std::string& path) {
    const size_t at = nodes_.size();
    nodes_.emplace_back();
    Node out;
    out.folder = std::filesystem::is_directory(path);
    if (out.folder) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        out.live[entry.path().filename()] = read(entry.path());
      }
      out.sure = out.live;
    } else {
      std::ifstream in(path, std::ios::binary);
      out.bytes.assign(std::istreambuf_iterator<char>(in), {});
      out.sure_bytes = out.bytes.size();
    }
    nodes_[at] = std::move(out);
    return at;
  }

  static std::string leaf(const std::string& path) {
    return std::filesystem::path(path).filename();
  }
  size_t folder_of(const Disk& disk, const std::string& path) const {
    size_t at = 0;
    const auto relative = std::filesystem::path(path).lexically_relative(root_);
    for (const auto& part : relative.parent_path()) {
      if (part != ".") at = disk.nodes[at].live.at(part);
    }
    return at;
  }

  static void change(std::map<std::string, size_t>& names, const Pending& p) {
    const auto from = names.find(p.name), to = names.find(p.other);
    switch (p.kind) {
      case Op::kAdd:
      case Op::kAddFolder: names[p.name] = p.node; break;
      case Op::kRemove: names.erase(p.name); break;
      case Op::kRename:
        if (from == names.end()) break;
        names[p.other] = from->second;
        names.erase(p.name);
        break;
      case Op::kExchange:
        if (from != names.end() && to != names.end()) std::swap(from->second, to->second);
        break;
      default: break;
    }
  }

  void apply(Disk& disk, const Op& op) const {
    switch (op.kind) {
      case Op::kOpen: {
        const size_t folder = folder_of(disk, op.path);
        const bool root = std::filesystem::path(op.path) == root_;
        disk.open[op.fd] = root ? 0 : disk.nodes[folder].live.at(leaf(op.path));
        return;
      }
      case Op::kWrite: disk.nodes[disk.open.at(op.fd)].bytes += op.bytes; return;
      case Op::kSync: return sync(disk, disk.open.at(op.fd));
      default: break;
    }
    const size_t folder = folder_of(disk, op.path);
    Pending p{op.kind, folder, leaf(op.path), op.other.empty() ? "" : leaf(op.other), 0};
    if (op.kind == Op::kAdd || op.kind == Op::kAddFolder) {
      p.node = disk.nodes.size();
      disk.nodes.emplace_back().folder = op.kind == Op::kAddFolder;
    }
    change(disk.nodes[folder].live, p);
    disk.pending.push_back(p);
  }

  static void sync(Disk& disk, size_t node) {
    disk.nodes[node].sure_bytes = disk.nodes[node].bytes.size();
    for (const Pending& p : disk.pending) {
      if (p.folder == node) change(disk.nodes[node].sure, p);
    }
    std::erase_if(disk.pending, [&](const Pending& p) { return p.folder == node; });
  }

  // The names on the disk if, of those that were not synced, the changes in the bits of `kept`
  // were.
  static Disk after_cut(Disk disk, size_t kept) {
    for (size_t i = 0; i < disk.pending.size(); ++i) {
      const Pending& p = disk.pending[i];
      if (i < 10 && (kept >> i & 1) != 0) change(disk.nodes[p.folder].sure, p);
    }
    return disk;
  }

  static void list(const Disk& disk, size_t node, const std::string& path, int bytes, Tree& out) {
    const Node& n = disk.nodes[node];
    if (!n.folder) {
      std::string content = n.bytes;
      const size_t unsure = n.bytes.size() - n.sure_bytes;
      if (bytes == 0) content.resize(n.sure_bytes);
      if (bytes == 1) std::fill(content.end() - static_cast<int64_t>(unsure), content.end(), '\0');
      if (bytes == 2) content.resize(n.sure_bytes + unsure / 2);
      out[path] = content;
      return;
    }
    if (!path.empty()) out[path] = std::nullopt;
    for (const auto& [name, inner] : n.sure) {
      list(disk, inner, path.empty() ? name : path + '/' + name, bytes, out);
    }
  }

  std::string root_;
  std::vector<Node> nodes_;  // at the start; 0 is the root
  std::vector<Op> ops_;
};

}  // namespace troupe::testing
