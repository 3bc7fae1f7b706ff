#include "tests/backends/backend_conformance.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Shm, BackendConformance,
                         testing::Values(BackendMaker{"shm", [](int size) {
                                                        return make_backends(
                                                            find_backend("shm"), size,
                                                            [](Context& context) {
                                                              context.executor.segment_bytes =
                                                                  kTestSegmentBytes;
                                                            });
                                                      }}));

}  // namespace
}  // namespace tutti::test
