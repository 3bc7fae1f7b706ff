#include "tutti/core/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "tutti/base/text.h"
#include "tutti/core/calls/communicator_state.h"
#include "tutti/core/membership/membership.h"

namespace tutti {

Communicator::Communicator(std::shared_ptr<CommunicatorState> state)
    : state_(std::move(state)), exceptions_(std::uncaught_exceptions()) {}

Communicator::~Communicator() {
  if (std::uncaught_exceptions() > exceptions_) close("an exception; its own output says which");
}

std::unique_ptr<Communicator> Communicator::create(Options options) {
  return std::unique_ptr<Communicator>(new Communicator(tutti::create(std::move(options))));
}

int Communicator::rank() const { return state_->options.rank; }
int Communicator::size() const { return state_->options.size; }
int Communicator::local_rank() const { return state_->local_rank; }
int Communicator::local_size() const { return state_->local_size; }
int Communicator::hosts() const { return state_->hosts; }
std::string Communicator::backend() const { return state_->engine->backend().capabilities().name; }
const Options& Communicator::options() const { return state_->options; }

// --- bytes ---------------------------------------------------------------------------------------

std::vector<std::byte> Communicator::broadcast_bytes(std::string_view name,
                                                     std::span<const std::byte> bytes, int root) {
  return broadcast_made_bytes(
      name, [&] { return std::vector(bytes.begin(), bytes.end()); }, root);
}

std::vector<std::byte> Communicator::broadcast_made_bytes(
    std::string_view name, const std::function<std::vector<std::byte>()>& make, int root) {
  state_->check_root(name, root);
  std::vector<std::byte> all;
  // In bytes. If the root failed, it is -1 - n, where n is the length of the error text.
  int64_t length = 0;
  if (rank() == root) {
    try {
      all = make();
      length = static_cast<int64_t>(all.size());
    } catch (const std::exception& error) {
      const auto why = one_line(error.what(), 1000);
      const auto text = std::as_bytes(std::span(why));
      all.assign(text.begin(), text.end());
      length = -1 - static_cast<int64_t>(all.size());
    }
  }
  // The length is broadcast under the caller's own name, so the ranks match the calls by it.
  broadcast(name, std::span(&length, 1), root).wait();
  const int64_t count = length < 0 ? -1 - length : length;
  all.resize(static_cast<size_t>(count));
  broadcast(fmt::format("{}.bytes", name), TensorView(all.data(), Shape{count}, DataType::u8), root)
      .wait();
  if (length < 0)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("\"{}\": rank {} could not hand in its part, so no rank gets any: {}", name,
                    root, std::string_view(reinterpret_cast<const char*>(all.data()), all.size())))
        .with_rank(root)
        .with_tensor(name);
  return all;
}

std::vector<std::vector<std::byte>> Communicator::allgather_bytes(
    std::string_view name, std::span<const std::byte> bytes) {
  std::vector<std::byte> own(bytes.begin(), bytes.end());
  auto work = allgather(
      name, TensorView(own.data(), Shape{static_cast<int64_t>(own.size())}, DataType::u8));
  const auto all = work.output();
  std::vector<std::vector<std::byte>> parts;
  const auto* at = all.data();
  for (const int64_t count : work.received_counts()) {
    parts.emplace_back(at, at + count);
    at += count;
  }
  return parts;
}

TensorHandle Communicator::declare(std::string_view name, Shape shape, DataType dtype) {
  state_->engine->check_not_forked(name);
  TensorHandle handle;
  handle.declared_ = std::make_shared<DeclaredTensor>(state_, name, shape, dtype);
  return handle;
}

SharedRegion Communicator::allocate(int64_t bytes) {
  state_->engine->check_not_forked("allocate");
  if (bytes < 0)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} bytes of memory were asked for; the number must be 0 or more", bytes));
  SharedRegion region(state_->engine,
                      state_->engine->backend().allocate(
                          static_cast<size_t>(std::max<int64_t>(bytes, 1)), Device{}));
  region.bytes_ = bytes;
  std::memset(region.data(), 0, static_cast<size_t>(bytes));
  return region;
}

void Communicator::close(std::string_view error) noexcept { state_->engine->close(error); }

Statistics Communicator::statistics() const { return state_->engine->statistics(); }

void Communicator::start_timeline(const std::string& file) {
  state_->engine->check_not_forked("start_timeline");
  state_->timeline_file = file;
  state_->engine->timeline().start();
}

void Communicator::stop_timeline() {
  state_->engine->check_not_forked("stop_timeline");
  const auto events = state_->engine->timeline().stop();
  const auto all = allgather_bytes("timeline " + json_string(state_->timeline_file),
                                   std::as_bytes(std::span(events.data(), events.size())));
  if (rank() != 0) return;
  std::vector<std::string> ranks;
  for (const auto& part : all)
    ranks.emplace_back(reinterpret_cast<const char*>(part.data()), part.size());
  write_timeline(state_->timeline_file, ranks);
}

void Communicator::timeline_span(std::string_view name, Clock::time_point begin,
                                 Clock::time_point end) {
  state_->engine->check_not_forked("timeline_span");
  state_->engine->timeline().nested_span("trainer", name, begin, end);
}

// --- other communicators ------------------------------------------------------------------------

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  state_->engine->check_not_forked("split");
  const SplitChoice mine{color, key};
  const int number = state_->splits++;
  const auto all =
      allgather_bytes(fmt::format("split {}", number), std::as_bytes(std::span(&mine, 1)));
  std::vector<SplitChoice> choices(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank)
    std::memcpy(&choices[rank], all[rank].data(), sizeof(SplitChoice));
  auto state = tutti::split(*state_, number, choices);
  return state ? std::unique_ptr<Communicator>(new Communicator(std::move(state))) : nullptr;
}

std::unique_ptr<Communicator> Communicator::shrink(Deadline deadline) {
  state_->engine->check_not_forked("shrink");
  return std::unique_ptr<Communicator>(new Communicator(tutti::shrink(*state_, deadline)));
}

}  // namespace tutti
