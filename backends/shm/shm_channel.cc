#include "tutti/backends/shm/shm_channel.h"

#include <poll.h>
#include <sys/epoll.h>

namespace tutti {

ShmChannel::ShmChannel(std::unique_ptr<ShmEnds> ends)
    : RingChannel(
          RingConsumer(ends->rings.control(1 - ends->side), ends->rings.ring(1 - ends->side)),
          RingProducer(ends->rings.control(ends->side), ends->rings.ring(ends->side)), ends->own,
          ends->peer),
      ends_(std::move(ends)) {}

ShmChannel::~ShmChannel() { forget_all(); }

void ShmChannel::watch(Poller& poller) {
  RingChannel::watch(poller);
  also_watch(ends_->socket.get(), EPOLLIN | EPOLLRDHUP);
  if (ends_->process) also_watch(ends_->process.get(), EPOLLIN);
}

std::string_view ShmChannel::look_for_end(bool carefully) {
  // A system call costs more than checking a ring. So a spinning reader makes the system call only
  // after many empty reads.
  constexpr unsigned kReadsPerLook = 1024;
  if (!end_.empty()) return end_;
  if (!carefully && ++empty_reads_ < kReadsPerLook) return {};
  empty_reads_ = 0;
  pollfd watched[2] = {{ends_->socket.get(), POLLIN | POLLRDHUP, 0},
                       {ends_->process.get(), POLLIN, 0}};  // poll() ignores -1
  if (::poll(watched, 2, 0) <= 0) return {};
  if (watched[1].revents != 0)
    end_ = "its process ended";
  else if (watched[0].revents & (POLLRDHUP | POLLHUP | POLLERR))
    end_ = "its end of the shared memory was closed";
  else if (watched[0].revents != 0)
    end_ = "it sent data on a socket that carries none";
  return end_;
}

}  // namespace tutti
