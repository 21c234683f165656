// SPDX-License-Identifier: Apache-2.0
#include "whatif/importers.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "trace/json_stream.h"

namespace hocket::whatif {
namespace {

constexpr size_t kBeginning = size_t{1} << 16;

std::string beginning_of(const std::string& path) {
  trace::TextSource source(path);
  std::string text;
  while (text.size() < kBeginning && source.peek() >= 0) {
    const std::string_view view = source.view();
    text.append(view);
    source.skip(view.size());
  }
  return text;
}

const Importer* importer_of(const std::string& beginning) {
  for (const Importer& importer : importers()) {
    if (importer.knows(beginning)) return &importer;
  }
  return nullptr;
}

/// An unnamed temporary file that holds the content of a pipe, which can be read only once.
class Spooled {
 public:
  explicit Spooled(const std::string& pipe) : pipe_(pipe) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(pipe.c_str(), "rb"),
                                                             std::fclose);
    std::vector<char> bytes(kBeginning);
    bool good = in != nullptr && file_ != nullptr;
    while (good) {
      const size_t n = std::fread(bytes.data(), 1, bytes.size(), in.get());
      if (n == 0) break;
      good = std::fwrite(bytes.data(), 1, n, file_.get()) == n;
    }
    if (!good || std::ferror(in.get()) != 0 || std::fflush(file_.get()) != 0) {
      fail(pipe, "is a pipe that cannot be copied to a temporary file; expected a file");
    }
    path_ = fmt::format("/proc/self/fd/{}", fileno(file_.get()));
  }
  const std::string& path() const { return path_; }
  /// Returns a text for people, with the name of the pipe.
  std::string named(std::string_view text) const {
    std::string out(text);
    for (size_t at = 0; (at = out.find(path_, at)) != out.npos; at += pipe_.size()) {
      out.replace(at, path_.size(), pipe_);
    }
    return out;
  }

 private:
  std::string pipe_, path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), std::fclose};
};

bool is_pipe(const std::string& path) {
  struct stat facts {};
  return stat(path.c_str(), &facts) == 0 && (S_ISFIFO(facts.st_mode) || S_ISSOCK(facts.st_mode));
}

MeasuredRun read_files(const std::vector<std::string>& paths, const std::string& format,
                       const cost::Cluster* cluster) {
  std::vector<std::string> names;
  const Importer* chosen = nullptr;
  for (const Importer& importer : importers()) {
    names.push_back(importer.name);
    chosen = format == importer.name ? &importer : chosen;
  }
  // By the first file that has a beginning: an importer may do without one that is damaged.
  for (size_t i = 0; i < paths.size() && format.empty() && chosen == nullptr; ++i) {
    chosen = importer_of(beginning_of(paths[i]));
  }
  if (chosen == nullptr && !format.empty()) {
    fail("hocket whatif --format", "got {}; expected one of {}", quote(format), join(names, ", "));
  }
  if (chosen == nullptr) {
    fail(paths[0],
         "is in no format that is known; expected one of {}; try --format if its "
         "beginning does not show which",
         join(names, ", "));
  }
  if (paths.size() > 1 && !chosen->several) {
    fail("hocket whatif", "got {} files of format {}; expected one, which holds all ranks",
         paths.size(), chosen->name);
  }
  if (cluster != nullptr && !chosen->priced) {
    fail("hocket whatif --cluster",
         "a trace of format {} has its durations; expected it with a "
         "Chakra trace only",
         chosen->name);
  }
  MeasuredRun run = chosen->read(paths, cluster);
  if (std::all_of(run.duration.begin(), run.duration.end(), [](double d) { return d <= 0; })) {
    fail(paths[0], "got {} that all take no time; expected durations",
         counted(run.num_ops(), "op"));
  }
  if (std::all_of(run.waits_for.begin(), run.waits_for.end(),
                  [](const std::vector<OpId>& waits) { return waits.empty(); })) {
    run.dropped.notes.push_back(
        fmt::format("no event, but no op waits for another one ({} a step): a step is its longest "
                    "op, and there is little to find",
                    counted(std::ssize(run.ops), "op")));
  }
  return run;
}

}  // namespace

const std::vector<Importer>& importers() {
  static const std::vector<Importer> list = {
      {"straggler", "Chrome JSON of StragglerAnalysis (Megatron's ops by type)", false, false,
       is_straggler, read_straggler},
      {"hocket", "the trace of a run or of a simulation of ours", false, false, is_hocket,
       read_hocket},
      {"kineto", "PyTorch profiles", true, false, is_kineto, read_kineto},
      {"chakra", "Chakra execution traces, .et or JSON", true, true, is_chakra, read_chakra},
  };
  return list;
}

MeasuredRun read_run(const std::vector<std::string>& paths, const std::string& format,
                     const cost::Cluster* cluster) {
  std::vector<std::string> files;
  std::vector<std::unique_ptr<Spooled>> spooled;
  for (const std::string& path : paths) {
    if (is_pipe(path)) {
      spooled.push_back(std::make_unique<Spooled>(path));
    }
    files.push_back(is_pipe(path) ? spooled.back()->path() : path);
  }
  const auto named = [&](std::string_view text) {
    std::string out(text);
    for (const auto& pipe : spooled) {
      out = pipe->named(out);
    }
    return out;
  };
  try {
    MeasuredRun run = read_files(files, format, cluster);
    for (std::string& note : run.dropped.notes) {
      note = named(note);
    }
    return run;
  } catch (const Error& error) {
    throw Error(error.kind(), named(error.where()), named(error.text()), error.cause());
  }
}

}  // namespace hocket::whatif
