// SPDX-License-Identifier: Apache-2.0
// Files: whole-file reads, atomic writes that survive a crash or a full disk, reads at any place.
// Everything that writes goes through here, so that tests can make any write fail (`FileFaults`).
// Reading errors and unwritable places are bad input; a write that fails half-way (disk full, I/O
// error) is a failed run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace hocket {

/// Returns the whole file. Throws Error if it is absent, a directory, unreadable or longer than
/// `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 40);

/// Hands the file to `take` in order, in pieces of at most 1 MiB, with one piece in memory. Ends
/// with the file, or when `take` returns false. Throws Error as read_file() does.
void read_pieces(const std::string& path, const std::function<bool(std::string_view)>& take);
/// Returns hash128() of the file. Throws Error as read_file() does.
Hash128 hash_file(const std::string& path);

/// A file being written, buffered. Every failure is an Error that names the path and the cause.
class FileWriter {
 public:
  enum class Mode {
    create,    ///< an empty file, whatever was there
    append,    ///< after the existing content, if any
    existing,  ///< as append, and an error if nothing is there: devices, pipes
    within     ///< from the beginning of a file that is there, and wherever seek() leads
  };
  /// `shown` is the name used in errors (the final name while a temporary is written).
  FileWriter(const std::string& path, Mode mode, const std::string& shown = "");
  /// Writes to standard output, after stdio's buffered bytes; close() leaves it open.
  static FileWriter standard_output();
  /// Closes without reporting; call close() to know that all was written.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  /// Sets the place of the file, `at`, where the next byte is written. Files of Mode::create and
  /// Mode::within.
  void seek(int64_t at);
  /// Makes the file this long: cuts it off, or adds zeros that take no room. Of the same modes.
  void set_size(int64_t bytes);
  /// Adds everything that is written from here on to `hasher`, too, which must outlive this.
  void hash_into(Hasher* hasher) { hasher_ = hasher; }
  /// Bytes written so far through this object.
  int64_t written() const { return written_; }
  /// Passes buffered bytes to the system.
  void flush();
  /// Flushes and waits until it is on the disk.
  void sync();
  void close();

 private:
  FileWriter(int fd, std::string shown) : fd_(fd), shown_(std::move(shown)) {}
  void put(const char* data, size_t bytes);

  int fd_ = -1;
  std::string shown_;
  std::string buffer_;
  int64_t written_ = 0;
  int64_t place_ = 0;  ///< of the next byte, where seek() is used
  Hasher* hasher_ = nullptr;
};

/// Writes to a temporary name in the same folder, syncs, renames over `path` and syncs the folder.
/// On any error, also from `writer`, the temporary is removed and `path` is unchanged. A link
/// stays: its target is replaced, or created. A device or pipe is not replaced: bytes are written
/// into it directly, so an error may leave a part. Throws Error for a folder or a cycle of links.
void write_file_atomic(const std::string& path, std::string_view bytes);
void write_file_atomic(const std::string& path, const std::function<void(FileWriter&)>& writer);

/// Writes a command's result: `-` is standard output, anything else is for write_file_atomic.
void write_output(const std::string& path, std::string_view bytes);
void write_output(const std::string& path, const std::function<void(FileWriter&)>& writer);

/// Returns whether write_file_atomic leaves such a name behind if the process is killed.
bool is_temporary_name(std::string_view name);

/// A file opened for reading at any place, from any thread. Another process that cuts it off gives
/// an Error; a mapping's pages would be gone with a signal.
class RandomFile {
 public:
  explicit RandomFile(const std::string& path);
  ~RandomFile();
  RandomFile(RandomFile&& other) noexcept;
  RandomFile& operator=(RandomFile&&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< when it was opened
  /// Reads bytes [at, at + bytes). Throws Error if the file does not reach that far (any more), and
  /// for errors of the disk.
  void read(int64_t at, void* dst, size_t bytes) const;

 private:
  int fd_ = -1;
  int64_t size_ = 0;
  std::string path_;
};

/// Raises this process's limit of open files, as far as the system allows, to `count` and a few in
/// reserve.
void allow_open_files(int64_t count);

bool file_exists(const std::string& path);  ///< a file, folder or anything else
bool is_directory(const std::string& path);
/// Returns whether a path is a symbolic link, wherever it leads.
bool is_link(const std::string& path);
int64_t file_size(const std::string& path);  ///< Error if absent
/// Returns an identity: equal for all views of one file, also over a network, and different for
/// another file or content. Throws Error if absent.
std::string file_identity(const std::string& path);
void make_dirs(const std::string& path);    ///< with parents; fine if it is there
void remove_file(const std::string& path);  ///< fine if it is not there
void remove_tree(const std::string& path);  ///< folder with all in it; fine if it is not there
/// Renames a file or folder and syncs the folder that holds it. `to` must not be a non-empty
/// folder.
void rename_durable(const std::string& from, const std::string& to);
void sync_dir(const std::string& path);
/// Names in a folder, sorted, without `.` and `..`.
std::vector<std::string> list_dir(const std::string& path);
/// "a/b" + "c" → "a/b/c"; an absolute `name` stands alone.
std::string join_path(const std::string& folder, const std::string& name);
std::string parent_path(const std::string& path);  ///< "." for a bare name
std::string file_name(const std::string& path);    ///< the part after the last slash

/// Test seam: while it lives, the n-th operation of one kind (1 is the next one, counted over all
/// threads) fails with `error` (an errno value). So do all later ones of that kind.
class FileFaults {
 public:
  enum class Op { open, write, sync, rename };
  FileFaults(Op op, int nth, int error);
  ~FileFaults();
  FileFaults(const FileFaults&) = delete;
  FileFaults& operator=(const FileFaults&) = delete;
  /// Operations of that kind seen so far.
  int seen() const;
};

}  // namespace hocket
