#include "tessera/cli.h"

int main(int argc, char** argv) { return tessera::run_cli(argc, argv); }
