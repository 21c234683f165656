// SPDX-License-Identifier: Apache-2.0
#include "tests/serve/serve_util.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>

#include "base/error.h"

namespace hocket::serve {

data::Tokenizer byte_tokenizer() {
  data::TokenizerSpec spec;
  for (int b = 0; b < 256; ++b) {
    spec.tokens.emplace_back(1, static_cast<char>(b));
  }
  spec.tokens.emplace_back("<|end|>");
  spec.pretokenizers.push_back(data::split_step(data::kGpt2Pattern));
  spec.eos = kEndToken;
  data::AddedToken end;
  end.id = kEndToken;
  end.text = "<|end|>";
  end.special = true;
  end.in_vocabulary = true;
  spec.added.push_back(end);
  return data::Tokenizer(std::move(spec));
}

data::ChatTemplate plain_template() {
  return data::ChatTemplate::parse(
      "{% for t in tools or [] %}[{{ t.function.name }}]|{% endfor %}"
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}|"
      "{% endfor %}{% if add_generation_prompt %}<assistant>{{ opening or '' }}{% endif %}",
      "test");
}

FakeService::FakeService(Options options)
    : options_(std::move(options)), reply_(options_.reply), held_(options_.held) {
  stats_.pages = 100;
  thread_ = std::thread([this] { work(); });
}

FakeService::~FakeService() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

RequestId FakeService::submit(Request request, OnUpdate on_update) {
  const std::lock_guard lock(mutex_);
  if (std::ssize(texts_) >= options_.limit) throw Busy();
  if (request.prompt.empty() || std::ssize(request.prompt) + request.max_tokens > options_.window) {
    fail("fake", "the request cannot run");
  }
  auto text = std::make_shared<Text>();
  text->left = reply_;
  if (text->left.empty()) {
    for (const int32_t id : request.prompt) {
      text->left += static_cast<char>(id);
    }
  }
  requests_.push_back(request);
  stats_.prompt_tokens += std::ssize(request.prompt);
  text->request = std::move(request);
  text->on_update = std::move(on_update);
  texts_[next_] = std::move(text);
  changed_.notify_all();
  return next_++;
}

void FakeService::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (const auto at = texts_.find(id); at != texts_.end()) {
    at->second->cancelled = true;
  }
  changed_.notify_all();
}

Stats FakeService::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.running = std::ssize(texts_);
  stats.pages_in_use = stats.running;
  return stats;
}

void FakeService::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeService::set_reply(const std::string& reply) {
  const std::lock_guard lock(mutex_);
  reply_ = reply;
}

int64_t FakeService::running() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(texts_);
}

int64_t FakeService::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

std::vector<Request> FakeService::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

bool FakeService::wait_idle() const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return texts_.empty(); });
}

/// Log-probability of a token: minus a thousandth of its id; alternatives are the ids from 0 on.
static TokenLogprobs fake_logprobs(int32_t id, int64_t top) {
  TokenLogprobs out{.token = id, .logprob = -0.001 * id, .sampled_logprob = -0.002 * id, .top = {}};
  for (int64_t i = 0; i < top; ++i) {
    out.top.emplace_back(static_cast<int32_t>(i), -0.001 * static_cast<double>(i));
  }
  return out;
}

Update FakeService::step(Text* text) const {
  const Request& request = text->request;
  Update update;
  if (text->cancelled) {
    update.finish = Finish::cancelled;
    return update;
  }
  if (!text->begun && request.prompt_logprobs >= 0) {
    for (size_t i = 1; i < request.prompt.size(); ++i) {
      update.prompt_logprobs.push_back(fake_logprobs(request.prompt[i], request.prompt_logprobs));
      update.prompt_logprobs.back().rank = request.prompt[i] + 1;
    }
  }
  text->begun = true;
  if (!options_.failure.empty() && text->tokens >= 2) {
    update.finish = Finish::failed;
    update.error = options_.failure;
    update.model_failed = options_.model_fails;
    return update;
  }
  if (text->tokens >= request.max_tokens) {
    update.finish = Finish::length;
    return update;
  }
  const bool ends = std::ranges::find(request.stop_tokens, kEndToken) != request.stop_tokens.end();
  if (text->left.empty() && ends) {
    update.finish = Finish::stop;
    update.stop_token = kEndToken;
    if (request.logprobs >= 0) {
      update.logprobs = {fake_logprobs(kEndToken, request.logprobs)};
    }
    return update;
  }
  const char c = text->left.empty() ? '.' : text->left[0];
  text->left.erase(0, 1);
  const int32_t id = static_cast<unsigned char>(c);
  update.tokens = {id};
  update.text = std::string(1, c);
  text->written += c;
  ++text->tokens;
  if (request.logprobs >= 0) {
    update.logprobs = {fake_logprobs(id, request.logprobs)};
  }
  for (const std::string& stop : request.stops) {
    if (text->written.ends_with(stop)) {
      update.finish = Finish::stop;
      update.stop = stop;
    }
  }
  if (std::ranges::find(request.stop_tokens, id) != request.stop_tokens.end()) {
    update.finish = Finish::stop;
    update.stop_token = id;
    update.tokens.clear();
    update.text.clear();
  } else if (update.finish == Finish::running && text->tokens == request.max_tokens) {
    update.finish = Finish::length;
  }
  return update;
}

void FakeService::work() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto any = [&] {
      return std::ranges::any_of(texts_,
                                 [&](const auto& t) { return !held_ || t.second->cancelled; });
    };
    changed_.wait(lock, [&] { return stop_ || any(); });
    if (stop_) return;
    const auto texts = texts_;
    for (const auto& [id, text] : texts) {
      if (held_ && !text->cancelled) continue;
      const Update update = step(text.get());
      stats_.generated_tokens += std::ssize(update.tokens);
      if (update.finish != Finish::running) {
        texts_.erase(id);
        cancelled_ += update.finish == Finish::cancelled ? 1 : 0;
      }
      lock.unlock();
      text->on_update(update);
      lock.lock();
    }
    ++stats_.steps;
    changed_.notify_all();
    if (options_.step_s > 0) {
      changed_.wait_for(lock, std::chrono::duration<double>(options_.step_s),
                        [&] { return stop_; });
    }
  }
}

std::vector<nlohmann::ordered_json> FakeStream::events() const {
  std::string all;
  for (const std::string& part : parts) {
    all += part;
  }
  std::vector<nlohmann::ordered_json> events;
  bool done = false;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << all.substr(at);
    EXPECT_TRUE(all.substr(at).starts_with("data: ")) << all.substr(at);
    if (end == std::string::npos) break;
    EXPECT_FALSE(done) << "an event behind [DONE]";
    const std::string data = all.substr(at + 6, end - at - 6);
    done = data == "[DONE]";
    if (!done) {
      events.push_back(nlohmann::ordered_json::parse(data));
    }
    at = end + 2;
  }
  EXPECT_TRUE(done) << "no [DONE]";
  return events;
}

ApiOptions fake_options() {
  ApiOptions options;
  options.names = {"fake", "alias"};
  options.root = "models/fake";
  options.stop_tokens = {kEndToken};
  options.limits.vocab_size = 257;
  options.tool_parser = "hermes";
  options.splits_reasoning = true;
  options.tokenizer_info = R"({"eos_token":"<|end|>"})";
  return options;
}

FakeServer::FakeServer(FakeService::Options service, ApiOptions api, HttpOptions http)
    : service_(std::move(service)), tokenizer_(byte_tokenizer()), template_(plain_template()) {
  api_ = std::make_unique<Api>(std::move(api), service_, tokenizer_, &template_);
  http.port = 0;
  http.error = [this](int status, const std::string& text) { return api_->refused(status, text); };
  http_ = open_http(http, [this](const HttpRequest& request, HttpPeer& peer) {
    return api_->handle(request, peer);
  });
}

FakeServer::~FakeServer() { http_->stop(); }

Client::Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

Client::~Client() { close(); }

void Client::close() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = -1;
}

void Client::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close();
}

void Client::small_window() {
  const int bytes = 2048;
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string Client::read_until(const std::string& end) {
  std::string out;
  char buffer[4096];
  while (end.empty() || out.find(end) == std::string::npos) {
    pollfd poll_fd{fd_, POLLIN, 0};
    if (::poll(&poll_fd, 1, 10'000) <= 0) break;
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    if (got <= 0) break;
    out.append(buffer, static_cast<size_t>(got));
  }
  return out;
}

Answer parse_answer(const std::string& bytes) {
  Answer answer;
  const size_t head = bytes.find("\r\n\r\n");
  if (!bytes.starts_with("HTTP/1.1 ") || head == std::string::npos) return answer;
  answer.status = std::stoi(bytes.substr(9, 3));
  answer.head = bytes.substr(0, head + 2);
  std::string body = bytes.substr(head + 4);
  if (answer.head.find("Transfer-Encoding: chunked") == std::string::npos) {
    answer.body = std::move(body);
    return answer;
  }
  for (size_t at = 0; at < body.size();) {
    const size_t line = body.find("\r\n", at);
    if (line == std::string::npos) break;
    const size_t size = std::stoul(body.substr(at, line - at), nullptr, 16);
    answer.body += body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  return answer;
}

std::string post_text(const std::string& path, const std::string& body,
                      const std::string& headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{}"
      "Content-Length: {}\r\n\r\n{}",
      path, headers, body.size(), body);
}

Answer fetch(int port, const std::string& method, const std::string& path, const std::string& body,
             const std::string& headers) {
  Client client(port);
  if (method == "POST") {
    client.send(post_text(path, body, "Connection: close\r\n" + headers));
  } else {
    client.send(fmt::format("{} {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n", method,
                            path, headers));
  }
  return parse_answer(client.read_all());
}

}  // namespace hocket::serve
