// Long runs on two thread ranks: memory, files, mappings and threads must not grow. Arguments:
// --steps N --sessions N. The exit status is the number of things that grew.
#include "soak.h"

using namespace tessera;

int main(int argc, char** argv) {
  test::SoakOptions options = test::soak_options(argc, argv);
  options.make_ranks = [] { return Cluster::threads(2); };
  return test::soak(options);
}
