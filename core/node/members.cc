#include "tutti/core/node/members.h"

#include <fmt/format.h>

namespace tutti {

namespace {

const Place& place_of(const Context& context, int rank) {
  return context.places[static_cast<size_t>(rank)];
}

bool is_on_this_host(const Context& context, int rank) {
  return place_of(context, rank).host == place_of(context, context.rank).host;
}

}  // namespace

std::string describe_rank(const Context& context, int rank) {
  const auto& place = place_of(context, rank);
  return fmt::format("rank {} (host {}, pid {})", rank, place.host_name, place.pid);
}

std::string how_to_go_on(const Context& context) {
  const int left = context.size - 1;
  return left == 1
             ? "shrink() gives the rank that is left a Communicator of its own"
             : fmt::format("shrink() gives the {} ranks that are left a new Communicator", left);
}

bool sees_process_of(const Context& context, int rank) {
  return is_on_this_host(context, rank) &&
         place_of(context, rank).shares_pids(place_of(context, context.rank));
}

}  // namespace tutti
