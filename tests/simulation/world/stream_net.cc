#include "tests/simulation/world/stream_net.h"

#include <algorithm>
#include <chrono>

#include "tests/backends/support/forwarding_backend.h"

namespace tutti::simulation {

using std::chrono::microseconds;

// --- messages -----------------------------------------------------------------------------------

SimStream::SimStream(StreamNet& net, int rank, std::vector<std::unique_ptr<Channel>> channels,
                     uint64_t credit, EndHooks hooks)
    : StreamCore(rank, std::move(channels), credit), net_(net), hooks_(std::move(hooks)) {}

Ticket SimStream::isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) {
  const Ticket ticket = StreamCore::isend(peer, header, bytes);
  posted_.push_back({ticket, bytes.data()});
  return ticket;
}

Ticket SimStream::irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
  const Ticket ticket = StreamCore::irecv(peer, tag, key, bytes);
  posted_.push_back({ticket, bytes.data()});
  return ticket;
}

TransferState SimStream::test(Ticket ticket, uint32_t* verdict) {
  const auto state = StreamCore::test(ticket, verdict);
  if (state == TransferState::pending) return state;
  const auto found = std::ranges::find(posted_, ticket, &Posted::ticket);
  if (found != posted_.end()) {
    *found = posted_.back();
    posted_.pop_back();
  }
  return state;
}

void SimStream::post(int peer, std::span<const std::byte> message) {
  hooks_.on_post(peer, message);
  auto& damage = net_.damage_of(rank(), peer);
  if (!damage) return StreamCore::post(peer, message);
  std::vector<std::byte> bytes(message.begin(), message.end());
  bytes[static_cast<size_t>(*damage) % bytes.size()] ^= std::byte{0x21};
  damage.reset();
  net_.meets_damage();
  StreamCore::post(peer, bytes);
}

// --- the backend --------------------------------------------------------------------------------

namespace {

/// An operation of the shipped backend that is counted while it exists.
class CountedOperation final : public test::ForwardingOperation {
 public:
  CountedOperation(std::vector<CountedOperation*>& all, OperationPtr rest,
                   const Collective& collective)
      : ForwardingOperation(std::move(rest)),
        all_(all),
        input_(collective.input),
        output_(collective.output) {
    all_.push_back(this);
  }
  ~CountedOperation() override { std::erase(all_, this); }
  OperationState advance() override {
    const auto state = ForwardingOperation::advance();
    is_over_ = state != OperationState::pending;
    return state;
  }
  template <class Reaches>
  bool works_in(Reaches&& reaches) const {
    return !is_over_ && (reaches(input_) || reaches(output_));
  }

 private:
  std::vector<CountedOperation*>& all_;
  const std::byte* const input_;
  const std::byte* const output_;
  bool is_over_ = false;
};

}  // namespace

/// The shipped backend, which reports each start to its rank. Its operations never fail without a
/// cause.
class StreamBackend final : public test::TransparentBackend {
 public:
  StreamBackend(std::unique_ptr<Backend> inner, SimStream& stream, EndHooks hooks)
      : TransparentBackend(std::move(inner)), stream_(stream), hooks_(std::move(hooks)) {}
  int descriptor() const override { return -1; }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return std::make_unique<CountedRegion>(rest().allocate(bytes, device), regions_);
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    hooks_.on_start(collective, launch);
    auto operation = rest().start(collective, launch);
    if (!operation) return operation;  // it is done already
    return OperationPtr(new CountedOperation(operations_, std::move(operation), collective));
  }
  SimStream& stream() const { return stream_; }
  const std::vector<CountedOperation*>& operations() const { return operations_; }
  size_t regions() const { return *regions_; }

 private:
  SimStream& stream_;
  const EndHooks hooks_;
  std::vector<CountedOperation*> operations_;
  const std::shared_ptr<size_t> regions_ = std::make_shared<size_t>(0);
};

// --- the network --------------------------------------------------------------------------------

StreamNet::StreamNet(Events& events, const World& world)
    : events_(events),
      world_(world),
      size_(world.size),
      lines_(place(size_) * place(size_)),
      damages_(place(size_) * place(size_)),
      network_(
          events, world.salt, world.size,
          [this](int low, int high) { return draw_shape(low, high); }, counters_),
      ends_(place(size_), nullptr) {}

StreamNet::~StreamNet() = default;

LinkShape StreamNet::draw_shape(int low, int high) {
  Random random(world_.salt, 1000 + place(low) * place(size_) + place(high));
  LinkShape shape;
  shape.latency = microseconds(random.between(world_.latency / 4, world_.latency));
  constexpr uint64_t kWithoutLimit = uint64_t{1} << 50;
  shape.bytes_per_second =
      world_.bandwidth > 0 ? static_cast<uint64_t>(world_.bandwidth) : kWithoutLimit;
  shape.buffer = static_cast<size_t>(std::max<int64_t>(world_.buffer, 1));
  shape.short_writes = shape.short_reads = static_cast<unsigned>(world_.splits);
  shape.late = static_cast<unsigned>(world_.splits / 2);
  shape.writing_fails = random.chance(500);
  return line(low, high).shape = shape;
}

SimStream& StreamNet::stream(int rank) const { return ends_[place(rank)]->stream(); }

std::unique_ptr<Backend> StreamNet::make_backend(int rank, const Context& context, EndHooks hooks) {
  auto stream = std::make_unique<SimStream>(*this, rank, network_.channels(rank, hooks.on_wake),
                                            static_cast<uint64_t>(world_.credit), hooks);
  auto& kept = *stream;
  auto rest = make_transport_backend(context, "streams", std::move(stream));
  auto all = over(rank, context, std::move(rest), hooks);
  auto end = std::make_unique<StreamBackend>(std::move(all), kept, std::move(hooks));
  ends_[place(rank)] = end.get();
  return end;
}

// Records the fault only if the link was still open; otherwise the fault had no effect.
void StreamNet::meets(Fault::Kind kind, int one, int other) {
  if (network_.link(one, other).is_open()) happens(kind);
}

void StreamNet::cut(int one, int other) {
  line(one, other).is_half_open = false;
  network_.link(one, other).reset();
}

void StreamNet::reset(int one, int other) {
  meets(Fault::Kind::reset, one, other);
  cut(one, other);
}

// The link loses bytes in both directions, and cannot go on afterwards.
void StreamNet::half_open(int from, int to, Time until) {
  meets(Fault::Kind::half_open, from, to);
  line(from, to).is_half_open = true;
  network_.link(from, to).half_open();
  events_.at(until, [this, from, to] {
    if (line(from, to).is_half_open) cut(from, to);
  });
}

void StreamNet::set_speed(int one, int other) {
  const auto& at = line(one, other);
  network_.link(one, other)
      .slow(at.shape.latency + microseconds(at.more),
            at.bandwidth.value_or(at.shape.bytes_per_second));
}

void StreamNet::delay(int one, int other, int64_t more_micros) {
  meets(Fault::Kind::delay, one, other);
  line(one, other).more += more_micros;
  set_speed(one, other);
}

void StreamNet::clog(int one, int other, Time until) {
  meets(Fault::Kind::clog, one, other);
  network_.link(one, other).stall(until - events_.now());
}

void StreamNet::slow(int one, int other, int64_t bytes_a_second) {
  meets(Fault::Kind::slow_link, one, other);
  line(one, other).bandwidth = static_cast<uint64_t>(bytes_a_second);
  set_speed(one, other);
}

void StreamNet::damage(int from, int to, int64_t place) { damage_of(from, to) = place; }

void StreamNet::heal() {
  for (int low = 0; low < size_; ++low)
    for (int high = low + 1; high < size_; ++high) {
      auto& at = line(low, high);
      if (at.is_half_open) cut(low, high);
      if (at.more == 0 && !at.bandwidth) continue;
      at.more = 0;
      at.bandwidth.reset();
      set_speed(low, high);
    }
  for (auto& damage : damages_) damage.reset();
}

size_t StreamNet::operations_left(int rank) const {
  return ends_[place(rank)]->operations().size();
}
size_t StreamNet::tickets_left(int rank) const { return stream(rank).posted().size(); }
size_t StreamNet::regions_left(int rank) const { return ends_[place(rank)]->regions(); }

bool StreamNet::is_used(int rank, const std::byte* begin, size_t bytes) const {
  const auto reaches = [&](const std::byte* at) { return at >= begin && at < begin + bytes; };
  return std::ranges::any_of(stream(rank).posted(),
                             [&](const auto& one) { return reaches(one.data); }) ||
         std::ranges::any_of(ends_[place(rank)]->operations(),
                             [&](const auto* one) { return one->works_in(reaches); });
}

}  // namespace tutti::simulation
