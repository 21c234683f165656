// SPDX-License-Identifier: Apache-2.0
// The one exception type and the one invariant check of Hocket.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace hocket {

/// A fault of a user, a file or the network. The text reads `[where] what; got X; expected Y; try
/// Z`. `kInput` ends a command with exit code 2 (bad input), `kRun` with 1 (a failed run).
class Error : public std::runtime_error {
 public:
  enum class Kind { kInput, kRun };
  /// Role of an error among several that end one step: the rank's own, or its stop because another
  /// rank failed.
  enum class Cause { own, stopped };
  /// The reason for a handler to branch on; texts are for people and never compared.
  enum class Code {
    none,
    layout,   ///< tensors lie so that an op, or a movement between two layouts, is impossible
    command,  ///< a command pass failed, or its output is no program
  };
  Error(Kind kind, std::string_view where, std::string_view text, Cause cause = Cause::own,
        Code code = Code::none)
      : std::runtime_error(fmt::format("[{}] {}", where, text)),
        kind_(kind),
        cause_(cause),
        code_(code),
        where_size_(where.size()) {}
  /// The two parts of what(): `where`, and the rest. Valid for the lifetime of the error.
  std::string_view where() const { return std::string_view(what()).substr(1, where_size_); }
  std::string_view text() const { return std::string_view(what()).substr(where_size_ + 3); }
  Kind kind() const { return kind_; }
  Cause cause() const { return cause_; }
  Code code() const { return code_; }
  int exit_code() const { return kind_ == Kind::kInput ? 2 : 1; }
  /// Returns the same error with one more clause: `[where] what; note`.
  Error with(std::string_view note) const {
    return Error(kind_, where(), fmt::format("{}; {}", text(), note), cause_, code_);
  }
  /// Returns the error for a message that names `place` itself: its text if it is of that place,
  /// else what().
  std::string beside(std::string_view place) const {
    return std::string(where() == place ? text() : what());
  }
  /// The same error with a note that names `place`, unless where() does.
  Error with_place(std::string_view place, std::string_view note) const {
    return where() == place ? *this : with(note);
  }
  /// The same error with a code.
  Error with(Code code) const { return Error(kind_, where(), text(), cause_, code); }

 private:
  Kind kind_;
  Cause cause_;
  Code code_;
  size_t where_size_;  ///< and no string of its own: an error is copied without a chance to throw
};

/// Throws an `Error` for bad input (exit code 2): `fail("safetensors", "header is {} bytes", n)`.
template <typename... Args>
[[noreturn]] void fail(std::string_view where, fmt::format_string<Args...> what, Args&&... args) {
  throw Error(Error::Kind::kInput, where, fmt::format(what, std::forward<Args>(args)...));
}

/// The same, with a code.
template <typename... Args>
[[noreturn]] void fail_with(Error::Code code, std::string_view where,
                            fmt::format_string<Args...> what, Args&&... args) {
  throw Error(Error::Kind::kInput, where, fmt::format(what, std::forward<Args>(args)...),
              Error::Cause::own, code);
}

/// Throws an `Error` for a run that failed (exit code 1).
template <typename... Args>
[[noreturn]] void fail_run(std::string_view where, fmt::format_string<Args...> what,
                           Args&&... args) {
  throw Error(Error::Kind::kRun, where, fmt::format(what, std::forward<Args>(args)...));
}

/// Returns fn(). Its errors get one more clause, such as the key that names a file.
template <typename Fn>
decltype(auto) with_note(std::string_view note, Fn&& fn) {
  try {
    return fn();
  } catch (const Error& error) {
    throw error.with(note);
  }
}

[[noreturn]] void check_failed(const char* file, int line, const char* cond,
                               const std::string& what);

}  // namespace hocket

/// A broken invariant of our own code: prints where and aborts with a std::logic_error.
#define HOCKET_CHECK(cond, ...)                                                      \
  do {                                                                               \
    if (!(cond)) [[unlikely]]                                                        \
      ::hocket::check_failed(__FILE__, __LINE__, #cond, ::fmt::format(__VA_ARGS__)); \
  } while (0)
