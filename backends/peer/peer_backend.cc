#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "tutti/backends/device/device_backend.h"
#include "tutti/backends/peer/peer_exchange.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/kernels/reduce.h"

// Runs collectives on the memory of GPUs that can access each other, or of one GPU that several
// ranks share. The kernels of each rank load from its peers' memory and store into it. The ranks
// are threads of one process or processes of one host. Another backend of ours serves host memory,
// control messages and liveness.

namespace tutti {

namespace {

constexpr std::string_view kFailedMark = "failed ";

std::vector<DeviceService> peer_services(Device device) {
  DeviceService moves{device, moving_kinds(), {}, {}};
  DeviceService reductions{device,
                           reducing_kinds(),
                           {},
                           {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}};
  auto averages = reductions, bits = reductions;
  averages.ops = {ReduceOp::average};
  bits.ops = {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor};
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto dtype = static_cast<DataType>(i);
    moves.dtypes.push_back(dtype);
    if (can_reduce(dtype, ReduceOp::max)) reductions.dtypes.push_back(dtype);
    if (can_reduce(dtype, ReduceOp::average)) averages.dtypes.push_back(dtype);
    if (can_reduce(dtype, ReduceOp::band)) bits.dtypes.push_back(dtype);
  }
  return {moves, reductions, averages, bits};
}

class PeerBackend final : public DeviceBackend {
 public:
  PeerBackend(std::unique_ptr<Backend> rest, DeviceRuntime& runtime, Device device,
              std::unique_ptr<OwnWords> words, std::vector<PeerSeen> peers)
      : DeviceBackend(std::move(rest), std::make_shared<DeviceBell>()),
        device_(device),
        exchange_(std::make_unique<PeerExchange>(runtime, device, bell_, std::move(words),
                                                 std::move(peers), *rest_->transport())) {
    capabilities_.name = "peer";
    capabilities_.route = fmt::format("kernels on {}", to_string(device));
    capabilities_.devices = peer_services(device);
  }

  bool progress() override {
    bell_->silence();
    const bool moved = rest_->progress();
    return exchange_->progress() || moved;
  }
  void abort(const Error& error) noexcept override {
    rest_->abort(error);
    exchange_->abort();
  }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return device == device_ ? exchange_->allocate(bytes) : rest_->allocate(bytes, device);
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    if (launch.device == nullptr) return rest_->start(collective, launch);
    check(collective, device_, "peer");
    return exchange_->start(collective, launch);
  }
  std::string name_for(const Collective& collective) const override {
    return rest_->name_for(collective);
  }
  bool works_elsewhere() const override { return rest_->works_elsewhere(); }

 private:
  const Device device_;
  const std::unique_ptr<PeerExchange> exchange_;
};

bool is_near(const Context& context, int peer) {
  const auto& own = context.places[static_cast<size_t>(context.rank)];
  const auto& its = context.places[static_cast<size_t>(peer)];
  return own.shares_pids(its) && own.pid == its.pid;
}

// The record that a rank publishes, so that its peers can reach its PeerWords (counters of its
// progress in host memory).
struct PeerRecord {
  int device = 0;
  int file = -1;
  uint64_t address = 0, token = 0, generation = 0;
};

std::string encode(const PeerRecord& record) {
  return fmt::format("{} {} {} {} {}", record.device, record.file, record.address, record.token,
                     record.generation);
}

PeerRecord decode(int rank, const std::string& text) {
  std::vector<uint64_t> numbers;
  for (const auto& word : split_text(text, ' '))
    if (const auto number = parse_integer(word, 0, INT64_MAX))
      numbers.push_back(static_cast<uint64_t>(*number));
  if (numbers.size() != 5)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format(
            "rank {} wrote something into the store that does not describe its shared memory",
            rank))
        .with_rank(rank);
  return {static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), numbers[2], numbers[3],
          numbers[4]};
}

// Publishes this rank's text or failure, and returns the texts of all ranks. If any rank failed,
// all ranks throw the same error. So no rank waits for a rank that has failed.
std::vector<std::string> tell_all(const Context& context, std::string_view what,
                                  const std::string& text, const std::string& failure) {
  const auto key = [&](int rank) { return fmt::format("peer/{}/{}", what, rank); };
  context.store->set(key(context.rank),
                     failure.empty() ? text : fmt::format("{}{}", kFailedMark, failure));
  std::vector<std::string> heard;
  for (int rank = 0; rank < context.size; ++rank) {
    heard.push_back(context.store->get(key(rank), context.deadline));
    if (heard.back().starts_with(kFailedMark))
      throw Error(ErrorCode::unavailable,
                  fmt::format("rank {}: {}", rank, heard.back().substr(kFailedMark.size())))
          .with_rank(rank);
  }
  return heard;
}

void require_one_host(const Context& context) {
  for (int rank = 1; rank < context.size; ++rank) {
    const auto& first = context.places[0];
    const auto& other = context.places[static_cast<size_t>(rank)];
    if (other.host != first.host)
      throw Error(ErrorCode::unavailable,
                  fmt::format("backend peer works within one host, but rank 0 runs on {} and rank "
                              "{} on {}; use peer+tcp",
                              first.host_name, rank, other.host_name));
    if (!other.shares_pids(first))
      throw Error(ErrorCode::unavailable,
                  fmt::format("rank 0 and rank {} are in different PID namespaces, so they cannot "
                              "share memory of a GPU; use shm, or let the containers share one",
                              rank));
  }
  if (static_cast<size_t>(context.size) > DeviceRuntime::kMostReduced)
    throw Error(ErrorCode::unavailable,
                fmt::format("backend peer takes {} ranks at most, and there are {}; use shm",
                            DeviceRuntime::kMostReduced, context.size));
}

// Connects the backend that the ranks use for host memory and control messages.
std::unique_ptr<Backend> connect_rest(const Context& outer) {
  auto context = outer;
  bool all_near = true;
  for (int peer = 0; peer < context.size; ++peer) all_near &= is_near(context, peer);
  context.name = all_near ? "memory" : "shm";
  context.inheritance = nullptr;
  const auto* plugin = context.plugin(context.name);
  if (plugin == nullptr)
    throw Error(
        ErrorCode::unavailable,
        fmt::format("backend peer needs backend {}, which this build does not have", context.name));
  return plugin->connect(context);
}

std::unique_ptr<Backend> connect(const Context& context) {
  Device device;
  std::unique_ptr<OwnWords> words;
  std::string text, failure;
  try {
    require_one_host(context);
    device = choose_device(context, "peer");
    device_runtime(device.kind).make_current(device);
    words = std::make_unique<OwnWords>(device_runtime(device.kind));
    text = encode({device.index, words->file(), reinterpret_cast<uintptr_t>(&words->words()),
                   load_word(words->words().token), load_word(words->words().closed)});
  } catch (const Error& error) {
    failure = error.what();
  }
  const auto records = tell_all(context, "words", text, failure);
  auto& runtime = device_runtime(device.kind);
  std::vector<PeerSeen> peers;
  try {
    for (int peer = 0; peer < context.size; ++peer) {
      const auto record = decode(peer, records[static_cast<size_t>(peer)]);
      const int pid = context.places[static_cast<size_t>(peer)].pid;
      PeerSeen seen{is_near(context, peer) ? 0 : pid, nullptr, record.generation};
      if (peer != context.rank && seen.is_near()) {
        runtime.reach(device, {device.kind, record.device});
        seen.words =
            std::make_unique<TheirWords>(runtime, reinterpret_cast<PeerWords*>(record.address));
      } else if (peer != context.rank) {
        seen.words = std::make_unique<TheirWords>(runtime, pid, record.file, record.token);
      }
      peers.push_back(std::move(seen));
    }
  } catch (const Error& error) {
    failure = error.what();
  }
  tell_all(context, "reached", "", failure);
  return std::make_unique<PeerBackend>(connect_rest(context), runtime, device, std::move(words),
                                       std::move(peers));
}

}  // namespace

extern const BackendPlugin peer_backend;
const BackendPlugin peer_backend = {
    .name = "peer",
    .summary =
        "GPUs that reach each other's memory, or one that ranks share, by Tutti's own kernels",
    .connect = connect,
    .works_on_devices = true,
};

}  // namespace tutti
