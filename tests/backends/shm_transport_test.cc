#include "tests/backends/transport_conformance.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         testing::Values(TransportMaker{"shm", "shm", [](int size) {
                                                          return make_transports(
                                                              find_backend("shm"), size);
                                                        }}));

}  // namespace
}  // namespace tutti::test
