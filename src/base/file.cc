// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace hocket {
namespace {

constexpr size_t kBufferBytes = 256 * 1024;
constexpr std::string_view kTemporaryMark = ".hocket-tmp-";

std::atomic<bool> fault_armed{false};
std::atomic<int> fault_op{0}, fault_nth{0}, fault_error{0}, fault_seen{0};

// The errno that a test wants this operation to fail with, or 0.
int injected(FileFaults::Op op) {
  if (!fault_armed.load(std::memory_order_acquire)) return 0;
  if (fault_op.load() != static_cast<int>(op)) return 0;
  return fault_seen.fetch_add(1) + 1 >= fault_nth.load() ? fault_error.load() : 0;
}

std::string error_text(int error) { return std::generic_category().message(error); }

// A place that cannot be written at all is the user's to change; anything later is a failed run.
[[noreturn]] void fail_io(const std::string& path, const char* doing, int error) {
  const bool input = error == ENOENT || error == EACCES || error == EPERM || error == ENOTDIR ||
                     error == EISDIR || error == EROFS || error == ENAMETOOLONG ||
                     error == EEXIST || error == ENOTEMPTY || error == ELOOP || error == ENXIO;
  const char* advice =
      error == ENOSPC || error == EDQUOT ? "; try another folder, or make room" : "";
  throw Error(input ? Error::Kind::kInput : Error::Kind::kRun, path,
              fmt::format("{} failed: {}{}", doing, error_text(error), advice));
}

int open_retry(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int sync_fd(int fd) {
  if (const int error = injected(FileFaults::Op::sync)) return error;
  return ::fsync(fd) == 0 ? 0 : errno;
}

int rename_path(const std::string& from, const std::string& to) {
  if (const int error = injected(FileFaults::Op::rename)) return error;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

// Opens an existing regular file for reading and yields its size.
int open_for_read(const std::string& path, int64_t* size) {
  const int fd = open_retry(path.c_str(), O_RDONLY);
  if (fd < 0) fail(path, "cannot be opened: {}", error_text(errno));
  struct stat st {};
  if (::fstat(fd, &st) != 0 || S_ISDIR(st.st_mode)) {
    const int error = S_ISDIR(st.st_mode) ? EISDIR : errno;
    ::close(fd);
    fail(path, "cannot be read: {}", error_text(error));
  }
  *size = S_ISREG(st.st_mode) ? st.st_size : -1;
  return fd;
}

// Destination of the bytes for a path.
struct Destination {
  std::string path;
  bool replace = true;  // a file of its own; else something that is written into
};

// Follows the links of `path` to their end. Links of /proc (/dev/stdout leads there) name an open
// file and not a place; those, devices and pipes are written into.
Destination destination_of(const std::string& path) {
  constexpr int kMaxLinks = 40;  // links, the limit of the system
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) {
    if (S_ISDIR(st.st_mode)) {
      fail_io(path, "opening it for writing", EISDIR);
    }
    return {path, false};
  }
  std::string at = path;
  for (int links = 0; links < kMaxLinks && is_link(at); ++links) {
    struct statfs system {};
    if (::statfs(parent_path(at).c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
      return {path, false};
    }
    std::string target(PATH_MAX, '\0');
    const ssize_t length = ::readlink(at.c_str(), target.data(), target.size());
    if (length < 0) {
      fail_io(path, "following the link", errno);
    }
    target.resize(static_cast<size_t>(length));
    at = target[0] == '/' ? target : join_path(parent_path(at), target);
  }
  if (is_link(at)) {
    fail_io(path, "following the link", ELOOP);
  }
  return {at, true};
}

}  // namespace

std::string read_file(const std::string& path, int64_t max_bytes) {
  int64_t size = 0;
  const Fd fd(open_for_read(path, &size));
  if (size > max_bytes) {
    fail(path, "file too long; got {} bytes; expected at most {}", size, max_bytes);
  }
  std::string out;
  // Pipes and /proc have no size: read until the end, whatever the size said. One byte more than
  // the size leaves room for the read that finds the end.
  out.resize(static_cast<size_t>(size > 0 ? size + 1 : 65536));
  size_t filled = 0;
  for (;;) {
    if (filled == out.size()) {
      out.resize(out.size() + 65536);
    }
    const ssize_t got = ::read(fd.get(), out.data() + filled, out.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read: {}", error_text(errno));
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (static_cast<int64_t>(filled) > max_bytes) {
      fail(path, "file too long; got more than {} bytes; expected at most that", max_bytes);
    }
  }
  out.resize(filled);
  return out;
}

void read_pieces(const std::string& path, const std::function<bool(std::string_view)>& take) {
  constexpr size_t kPiece = size_t{1} << 20;
  int64_t size = 0;
  const Fd fd(open_for_read(path, &size));
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  // A small file gets a small buffer: of many files, clearing it took longer than reading them.
  std::string piece(size > 0 ? std::min(kPiece, static_cast<size_t>(size) + 1) : kPiece, '\0');
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read: {}", error_text(errno));
    if (got == 0) return;
    if (!take(std::string_view(piece).substr(0, static_cast<size_t>(got)))) return;
  }
}

Hash128 hash_file(const std::string& path) {
  Hasher hasher;
  read_pieces(path, [&](std::string_view piece) {
    hasher.add(piece);
    return true;
  });
  return hasher.finish();
}

FileWriter::FileWriter(const std::string& path, Mode mode, const std::string& shown)
    : shown_(shown.empty() ? path : shown) {
  int error = injected(FileFaults::Op::open);
  if (error == 0) {
    int flags = 0;
    if (mode == Mode::create) {
      flags = O_CREAT | O_TRUNC;
    } else if (mode == Mode::append) {
      flags = O_CREAT | O_APPEND;
    } else if (mode == Mode::existing) {
      flags = O_APPEND | O_NOCTTY;
    }
    fd_ = open_retry(path.c_str(), O_WRONLY | flags, 0666);
    if (fd_ < 0) {
      error = errno;
    }
  }
  if (error != 0) {
    fail_io(shown_, "opening it for writing", error);
  }
}

FileWriter FileWriter::standard_output() {
  constexpr const char* kShown = "standard output";
  if (std::fflush(stdout) != 0) {
    fail_io(kShown, "writing", errno);
  }
  const int fd = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) {
    fail_io(kShown, "opening it for writing", errno);
  }
  return {fd, kShown};
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void FileWriter::put(const char* data, size_t bytes) {
  HOCKET_CHECK(fd_ >= 0, "{} is closed", shown_);
  while (bytes > 0) {
    if (const int error = injected(FileFaults::Op::write)) {
      fail_io(shown_, "writing", error);
    }
    // One call moves at most 2 GiB on Linux; smaller pieces keep a signal's delay short.
    const ssize_t done = ::write(fd_, data, std::min(bytes, size_t{64} << 20));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      fail_io(shown_, "writing", errno);
    }
    data += done;
    bytes -= static_cast<size_t>(done);
  }
}

void FileWriter::write(const void* data, size_t bytes) {
  written_ += static_cast<int64_t>(bytes);
  place_ += static_cast<int64_t>(bytes);
  if (hasher_ != nullptr) {
    hasher_->add({static_cast<const char*>(data), bytes});
  }
  if (buffer_.size() + bytes <= kBufferBytes) {
    buffer_.append(static_cast<const char*>(data), bytes);
    return;
  }
  flush();
  if (bytes >= kBufferBytes) {
    put(static_cast<const char*>(data), bytes);
  } else {
    buffer_.assign(static_cast<const char*>(data), bytes);
  }
}

void FileWriter::flush() {
  if (buffer_.empty()) return;
  const std::string pending = std::exchange(buffer_, std::string());
  put(pending.data(), pending.size());
}

void FileWriter::seek(int64_t at) {
  if (at == place_) return;
  flush();
  if (::lseek(fd_, at, SEEK_SET) < 0) {
    fail_io(shown_, "writing", errno);
  }
  place_ = at;
}

void FileWriter::set_size(int64_t bytes) {
  flush();
  int error = injected(FileFaults::Op::write);
  if (error == 0 && ::ftruncate(fd_, bytes) != 0) {
    error = errno;
  }
  if (error != 0) {
    fail_io(shown_, "writing", error);
  }
}

void FileWriter::sync() {
  flush();
  if (const int error = sync_fd(fd_)) {
    fail_io(shown_, "syncing", error);
  }
}

void FileWriter::close() {
  if (fd_ < 0) return;
  flush();
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 && errno != EINTR) {
    fail_io(shown_, "closing", errno);
  }
}

void write_file_atomic(const std::string& path, const std::function<void(FileWriter&)>& writer) {
  // Writes beside the file, syncs, renames over it, and syncs the folder: a crash at any moment
  // leaves the old file or the new one. A device or pipe cannot be replaced, so bytes go into it.
  static std::atomic<int> counter{0};
  const Destination to = destination_of(path);
  if (!to.replace) {
    FileWriter file(to.path, FileWriter::Mode::existing, path);
    writer(file);
    file.close();
    return;
  }
  const std::string temporary =
      fmt::format("{}{}{}-{}", to.path, kTemporaryMark, ::getpid(), counter.fetch_add(1));
  try {
    FileWriter file(temporary, FileWriter::Mode::create, path);
    writer(file);
    file.sync();
    file.close();
    if (const int error = rename_path(temporary, to.path)) {
      fail_io(path, "renaming into place", error);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_dir(parent_path(to.path));
}

void write_file_atomic(const std::string& path, std::string_view bytes) {
  write_file_atomic(path, [bytes](FileWriter& file) { file.write(bytes); });
}

void write_output(const std::string& path, const std::function<void(FileWriter&)>& writer) {
  if (path != "-") {
    write_file_atomic(path, writer);
    return;
  }
  FileWriter out = FileWriter::standard_output();
  writer(out);
  out.close();
}

void write_output(const std::string& path, std::string_view bytes) {
  write_output(path, [bytes](FileWriter& file) { file.write(bytes); });
}

bool is_temporary_name(std::string_view name) {
  return name.find(kTemporaryMark) != std::string_view::npos;
}

RandomFile::RandomFile(const std::string& path) : path_(path) {
  fd_ = open_for_read(path, &size_);  // here, where no member's initial value can follow
  if (size_ < 0) {
    ::close(fd_);
    fail(path, "cannot be read at any place; expected a regular file");
  }
}

RandomFile::~RandomFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

RandomFile::RandomFile(RandomFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

void RandomFile::read(int64_t at, void* dst, size_t bytes) const {
  auto* to = static_cast<char*>(dst);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, to, bytes, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "cannot be read: {}", error_text(errno));
    if (got == 0) {
      struct stat st {};
      ::fstat(fd_, &st);
      fail_run(path_, "was cut off while it was read; got {} bytes; expected {}", st.st_size,
               size_);
    }
    to += got;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

void allow_open_files(int64_t count) {
  constexpr rlim_t kOthers = 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, static_cast<rlim_t>(count) + kOthers);
  if (wanted <= limit.rlim_cur) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if not: opening one too many says so
}

bool file_exists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

bool is_link(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && S_ISLNK(st.st_mode);
}

bool is_directory(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

int64_t file_size(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) fail(path, "cannot be read: {}", error_text(errno));
  return st.st_size;
}

std::string file_identity(const std::string& path) {
  // The number of the device is the affair of each host. Two files of one number, on two file
  // systems, were not made in the same nanosecond.
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) fail(path, "cannot be read: {}", error_text(errno));
  return fmt::format("{} {} {}.{:09}", st.st_ino, st.st_size, st.st_ctim.tv_sec,
                     st.st_ctim.tv_nsec);
}

void make_dirs(const std::string& path) {
  if (path.empty() || is_directory(path)) return;
  const std::string parent = parent_path(path);
  if (parent != path) {
    make_dirs(parent);
  }
  // Another process may make it first.
  if (::mkdir(path.c_str(), 0777) != 0 && !(errno == EEXIST && is_directory(path))) {
    fail_io(path, "making the folder", errno);
  }
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    fail_io(path, "removing", errno);
  }
}

void remove_tree(const std::string& path) {
  if (!is_directory(path) || is_link(path)) {
    remove_file(path);
    return;
  }
  for (const std::string& name : list_dir(path)) {
    remove_tree(path + "/" + name);
  }
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) {
    fail_io(path, "removing", errno);
  }
}

void rename_durable(const std::string& from, const std::string& to) {
  if (const int error = rename_path(from, to)) {
    fail_io(to, "renaming into place", error);
  }
  sync_dir(parent_path(to));
}

void sync_dir(const std::string& path) {
  const Fd fd(open_retry(path.c_str(), O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) {
    fail_io(path, "opening the folder", errno);
  }
  const int error = sync_fd(fd.get());
  // Some network file systems do not sync folders; the rename itself is done by then.
  if (error != 0 && error != EINVAL) {
    fail_io(path, "syncing the folder", error);
  }
}

std::vector<std::string> list_dir(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (dir == nullptr) fail(path, "cannot be listed: {}", error_text(errno));
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string join_path(const std::string& folder, const std::string& name) {
  if (folder.empty() || (!name.empty() && name[0] == '/')) return name;
  return folder.back() == '/' ? folder + name : folder + "/" + name;
}

std::string parent_path(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  const size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

std::string file_name(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

FileFaults::FileFaults(Op op, int nth, int error) {
  HOCKET_CHECK(!fault_armed.load(), "one FileFaults at a time");
  fault_op = static_cast<int>(op);
  fault_nth = nth;
  fault_error = error;
  fault_seen = 0;
  fault_armed.store(true, std::memory_order_release);
}

FileFaults::~FileFaults() { fault_armed.store(false); }

int FileFaults::seen() const { return fault_seen.load(); }

}  // namespace hocket
