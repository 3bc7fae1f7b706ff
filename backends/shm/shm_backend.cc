#include "tutti/backends/backend.h"
#include "tutti/backends/shm/rendezvous.h"
#include "tutti/backends/shm/shm_channel.h"
#include "tutti/backends/shm/shm_memory.h"
#include "tutti/backends/stream/rest_backend.h"

namespace tutti {

namespace {

std::vector<std::unique_ptr<Channel>> open_shm(const Context& context, std::span<const int> peers) {
  std::vector<std::unique_ptr<Channel>> channels(static_cast<size_t>(context.size));
  for (auto& [peer, ends] : connect_through_memory(context, peers))
    channels[static_cast<size_t>(peer)] = std::make_unique<ShmChannel>(std::move(ends));
  return channels;
}

std::unique_ptr<Backend> connect_shm(const Context& context) {
  const auto peers = peers_of(context);
  if (peers.empty()) return make_stream_backend(context, "shm", open_shm(context, peers));

  auto file = SharedFile::create(shared_block_bytes());
  auto connected = connect_through_memory(context, peers, file.descriptor());
  const auto n = static_cast<size_t>(context.size);
  std::vector<const std::unique_ptr<ShmEnds>*> ends(n, nullptr);
  for (auto& [peer, end] : connected) ends[static_cast<size_t>(peer)] = &end;
  auto memory = make_shm_memory(context.rank, context.size, std::move(file), ends);
  std::vector<std::unique_ptr<Channel>> channels(n);
  for (auto& [peer, end] : connected)
    channels[static_cast<size_t>(peer)] = std::make_unique<ShmChannel>(std::move(end));
  return make_shared_memory_backend(
      context, make_stream_backend(context, "shm", std::move(channels)), std::move(memory));
}

}  // namespace

extern const BackendPlugin shm_backend;
const BackendPlugin shm_backend = {
    .name = "shm",
    .summary = "ranks are processes on one host, through shared memory",
    .connect = connect_shm,
    .open = open_shm,
};

}  // namespace tutti
