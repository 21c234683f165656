// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/intervals.h"
#include "base/text.h"
#include "checkpoint/adapter.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/parts.h"

namespace hocket::checkpoint {

namespace {

/// Returns the name that a host's partial file gets in the joined checkpoint.
std::string whole_name(const std::string& name) {
  if (name == kModelPartFile) return kModelFile;
  if (name == kAdapterPartFile) return kAdapterFile;
  return name == kOptimizerPartFile ? kOptimizerFile : name;
}

/// Joins the folders of one checkpoint; see join().
class CheckpointJoiner {
 public:
  CheckpointJoiner(const std::vector<std::string>& folders, std::string out)
      : folders_(folders), out_(std::move(out)) {}
  Joined join();

 private:
  void expect_room() const;
  void open();
  void expect_all() const;
  void write(const std::string& folder) const;
  FileRecord copy_parts(const std::string& name, const std::string& to) const;
  template <class Take>
  void for_each_range(const FileRecord& file, int32_t host, const Take& take) const;
  std::string host_text(int32_t host) const;

  const std::vector<std::string>& folders_;
  const std::string out_;
  RunRecord record_;
  std::map<int32_t, std::string> by_host_;
};

/// Requires every folder to be an intact part of the same checkpoint, and all folders together to
/// be complete. Only then is the output written, under a temporary name that is renamed last.
Joined CheckpointJoiner::join() {
  open();
  expect_room();
  expect_all();
  const std::string folder = temporary_name(out_, ::getpid());
  try {
    write(folder);
    verify_checkpoint(folder, Verify::lengths);
    rename_durable(folder, out_);
  } catch (...) {
    try {
      remove_tree(folder);
    } catch (const Error&) {
      // The first error is the one to report.
    }
    throw;
  }
  Joined joined;
  joined.step = record_.state.step;
  joined.hosts = static_cast<int64_t>(record_.hosts.size());
  for (const auto& [host, from] : by_host_) {
    joined.given_hosts.push_back(host);
  }
  for (const auto& [name, file] : record_.files) {
    joined.bytes += file.parts.empty() ? 0 : file.bytes;
  }
  return joined;
}

std::string CheckpointJoiner::host_text(int32_t host) const {
  return fmt::format("host {} of {} ({})", host, record_.hosts.size(),
                     record_.hosts[static_cast<size_t>(host)].name);
}

void CheckpointJoiner::open() {
  for (const std::string& folder : folders_) {
    verify_checkpoint(folder, Verify::all);
    RunRecord record = read_record(join_path(folder, kRunFile));
    if (record.hosts.empty()) {
      fail(folder, "is a whole checkpoint: there is nothing to join; use it as it is");
    }
    if (by_host_.empty()) {
      record_ = std::move(record);
    } else if (record.state.step != record_.state.step) {
      fail(folder, "is of step {}; {} is of step {}; expected parts of one step", record.state.step,
           by_host_.begin()->second, record_.state.step);
    } else if (record.hash != record_.hash) {
      fail(folder, "is part of another save of step {} than {}; expected parts of one save",
           record.state.step, by_host_.begin()->second);
    }
    const int32_t host = read_host(join_path(folder, kHostFile), record_);
    if (const auto [known, fresh] = by_host_.emplace(host, folder); !fresh) {
      fail(folder, "is the folder of {}, and so is {}; expected one folder per host",
           host_text(host), known->second);
    }
  }
}

void CheckpointJoiner::expect_room() const {
  const int64_t named = step_of(file_name(out_));
  if (named >= 0 && named != record_.state.step) {
    fail(out_, "is named after step {}; the parts are of step {}; try {}", named,
         record_.state.step, step_name(record_.state.step));
  }
  if (file_exists(out_) || is_link(out_)) {
    fail(out_, "exists already; expected the name of a new folder");
  }
}

/// Calls `take(part, begin, length)` for the byte ranges of a file that the ranks of a host wrote.
template <class Take>
void CheckpointJoiner::for_each_range(const FileRecord& file, int32_t host,
                                      const Take& take) const {
  for (const Part& part : file.parts) {
    if (part.host != host) continue;
    for (const Range& range : part.ranges) {
      for (int64_t i = 0; i < range.times; ++i) {
        take(part, range.begin + i * range.stride, range.length);
      }
    }
  }
}

/// Throws Error unless the folders hold every byte of every file. The error names the first host
/// without its part.
void CheckpointJoiner::expect_all() const {
  for (const auto& [name, file] : record_.files) {
    if (file.parts.empty()) continue;
    Intervals have;
    for (const auto& [host, folder] : by_host_) {
      for_each_range(file, host,
                     [&](const Part&, int64_t begin, int64_t length) { have.add(begin, length); });
    }
    int64_t missing = 0;
    int64_t first = -1;
    have.missing(0, file.bytes, [&](int64_t begin, int64_t length) {
      first = first < 0 ? begin : first;
      missing += length;
    });
    if (missing == 0) continue;
    for (int32_t host = 0; host < static_cast<int32_t>(record_.hosts.size()); ++host) {
      for_each_range(file, host, [&](const Part& part, int64_t begin, int64_t length) {
        if (begin > first || first >= begin + length) return;
        fail("checkpoint join",
             "{} of {} bytes of {} are in none of the folders: from byte {} on, written by rank {} "
             "on {}; try with that host's folder, too",
             missing, file.bytes, whole_name(name), first, part.rank, host_text(host));
      });
    }
    fail("checkpoint join", "{} of {} bytes of {} were written by no rank", missing, file.bytes,
         whole_name(name));
  }
}

/// Copies a tensor file, each byte from the first host that has it.
FileRecord CheckpointJoiner::copy_parts(const std::string& name, const std::string& to) const {
  const FileRecord& file = record_.files.at(name);
  FileWriter empty(to, FileWriter::Mode::create);
  empty.set_size(file.bytes);
  empty.close();
  PartsWriter out(to, 0);
  Intervals there;
  std::string piece;
  for (const auto& [host, folder] : by_host_) {
    const RandomFile in(join_path(folder, name));
    for_each_range(file, host, [&](const Part& part, int64_t begin, int64_t length) {
      there.add(begin, length, [&](int64_t from, int64_t count) {
        for (int64_t done = 0; done < count; done += kPieceBytes) {
          piece.resize(static_cast<size_t>(std::min(kPieceBytes, count - done)));
          in.read(from + done, piece.data(), piece.size());
          out.put(part.rank, from + done, piece);
        }
      });
    });
  }
  return {file.bytes, "", out.finish()};
}

void CheckpointJoiner::write(const std::string& folder) const {
  make_dirs(folder);
  const auto put = [&](const std::string& name, const std::string& bytes) {
    FileWriter out(join_path(folder, name), FileWriter::Mode::create);
    out.write(bytes);
    out.sync();
    out.close();
  };
  FileRecords files;
  for (const auto& [name, file] : record_.files) {
    const std::string whole = whole_name(name);
    if (file.parts.empty()) {
      put(whole, read_file(join_path(by_host_.begin()->second, name)));
      files[whole] = file;
    } else {
      files[whole] = copy_parts(name, join_path(folder, whole));
    }
  }
  put(kRunFile, record_json(record_.state, record_.dtype, files, {}));
  sync_dir(folder);
}

}  // namespace

Joined join_checkpoint(const std::vector<std::string>& folders, const std::string& out) {
  return CheckpointJoiner(folders, out).join();
}

}  // namespace hocket::checkpoint
