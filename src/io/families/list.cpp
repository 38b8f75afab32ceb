#include "io/families/family.h"

namespace tessera {

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all = {
      &kLlama,   &kMistral,  &kQwen2, &kQwen3, &kGpt2,       &kGemma2, &kGemma3,
      &kMixtral, &kQwen3Moe, &kT5,    &kBert,  &kDeepseekV3, &kVit};
  return all;
}

}  // namespace tessera
