"""Every table and figure of the papers: what it shows, its commands, what the paper reports."""

from typing import NamedTuple


class Artifact(NamedTuple):
    """A table or figure of a paper.

    Attributes:
        title: What is measured.
        commands: Scripts of recipes/ with their flags, or a test that shows the claim; empty for
            an illustration, in which nothing is measured.
        reported: The paper's result in short.
        same_as: Another artifact that shows the same.
    """

    title: str
    commands: tuple[str, ...] = ()
    reported: str = ""
    same_as: str = ""

    @property
    def is_test(self) -> bool:
        """True if a test shows the claim."""
        return any(command.startswith("tests/") for command in self.commands)


def variants(command, flag, values):
    """Return the commands with each of the flag's values."""
    return tuple(f"{command} --{flag} {value}" for value in values)


HIGHWAY = "highway_conv.py --model"
GATES = ("mnist_gates.py", "mnist_gates.py --data cifar100")
REFINE = "iterative_inference.py"
MODELS = ("single_representation_resnet", "avg_pooling_resnet", "wide_resnet")
FOUR = (REFINE, *variants(REFINE, "model", MODELS))
REFINE100 = f"{REFINE} --data cifar100"
FOUR100 = (REFINE100, *variants(REFINE100, "model", MODELS))
PLAIN = "plain_vs_residual.py --artifact"
STABLE = "noise_stability.py --artifact"
ILLUSTRATION = Artifact("an illustration")
ARTIFACTS = {
    "srivastava2015/fig1": Artifact(
        "training loss of plain and highway MLPs by depth",
        ("mnist_depth_search.py",),
        "plain networks of 10 and 20 layers reach 1e-4 and fail beyond; highway networks of 100 "
        "layers lie more than two orders of magnitude below plain ones",
    ),
    "srivastava2015/fig2": Artifact(
        "biases, gates and outputs of a 50-layer MLP",
        GATES,
        "most biases fall; the gates of one example are sparse, their mean is not; outputs change "
        "in the first 15 layers or so",
    ),
    "srivastava2015/fig3": Artifact(
        "how classes open the gates", GATES, "they differ in the first 15 layers"
    ),
    "srivastava2015/fig4": Artifact(
        "training loss without each layer",
        GATES,
        "early layers matter, those from 15 to 45 hardly: about 60 % are idle",
    ),
    "srivastava2015/fig5": Artifact(
        "Fig. 1 again, in the longer version", same_as="srivastava2015/fig1"
    ),
    "srivastava2015/table1": Artifact(
        "MNIST accuracy",
        (f"{HIGHWAY} highway_mnist", f"{HIGHWAY} highway_mnist --width 32"),
        "99.43 % with 39 K, 99.55 % with 151 K",
    ),
    "srivastava2015/table2": Artifact(
        "CIFAR-10 accuracy of highways A, B, C",
        tuple(f"{HIGHWAY} highway_{letter}" for letter in "abc"),
        "89.18, 92.46, 91.20 %",
    ),
    "srivastava2015/table3": Artifact(
        "CIFAR accuracy, 19 layers",
        (f"{HIGHWAY} highway_cifar", f"{HIGHWAY} highway_cifar --data cifar100"),
        "92.40 and 67.76 %",
    ),
    "srivastava2015/section2.2": Artifact(
        "a highway network of 1,000 layers trains",
        ("mnist_1000_layers.py",),
        "training did not stall",
    ),
    "greff2017/fig1": ILLUSTRATION,
    "greff2017/fig2": ILLUSTRATION,
    "greff2017/table1a": Artifact(
        "Penn Treebank perplexity of six variants",
        ("ptb_char_lm.py --variant all",),
        "plain 92.60, residual 91.32, t_only 82.94, c_only 79.15, coupled 79.13, full 79.09",
    ),
    "greff2017/table1b": Artifact(
        "ILSVRC top-5 error of six networks",
        ("imagenet_resnet50.py",),
        "without normalisation: highway 10.03, full 10.21, residual 9.40 %; with: 7.53, 7.29, 7.17",
    ),
    "greff2017/fig3": Artifact(
        "estimation error of ResNet-50",
        ("imagenet_resnet50.py --networks resnet_bn",),
        "means near 0 in stages 1 to 3, deviations that fall; stage 4 negative",
    ),
    "greff2017/fig4": Artifact(
        "top patches of a unit along a stage",
        ("imagenet_resnet50.py --networks resnet_bn",),
        "later blocks choose one pattern more purely",
    ),
    "greff2017/fig5": Artifact(
        "ILSVRC curves",
        ("imagenet_resnet50.py",),
        "with normalisation the residual network's loss ends lower, without the highway's does",
    ),
    "greff2017/appendix_a": Artifact(
        "a gate can be the optimal linear estimator (equations 12 and 17)",
        ("tests/test_theory.py -k optimal",),
    ),
    "jastrzebski2018/table1": Artifact(
        "CIFAR errors and parameters",
        variants(REFINE, "depth", (32, 38, 56, 110))
        + variants("shared_blocks.py --networks ubn", "depth", (110, 146, 182)),
        "test errors on CIFAR-10: ResNet-38 6.99, ResNet-110 6.13, ResNet-110-UBN 6.62 %",
    ),
    "jastrzebski2018/fig2": Artifact(
        "l2 ratio of each block", FOUR, "up to 2 in the first blocks, small in later ones"
    ),
    "jastrzebski2018/fig3": Artifact(
        "accuracy without each block", FOUR, "catastrophic for the first blocks, else mild"
    ),
    "jastrzebski2018/fig4": Artifact(
        "cosine loss of each block", FOUR, "negative, more so in high blocks: about -0.1"
    ),
    "jastrzebski2018/fig5": Artifact(
        "intermediate accuracy in training", FOUR, "rises from block to block"
    ),
    "jastrzebski2018/fig6": Artifact(
        "borderline examples", (REFINE,), "they improve; the test loss rises after the last block"
    ),
    "jastrzebski2018/fig7": Artifact(
        "the last block unrolled", (REFINE,), "borderline accuracy 43 to 53 %, training loss falls"
    ),
    "jastrzebski2018/fig8": Artifact(
        "naive sharing beside no sharing",
        ("shared_blocks.py --networks unshared,naive",),
        "it overfits, its gradient norm ratio is larger, its activations explode at the start",
    ),
    "jastrzebski2018/fig9": Artifact(
        "ablation of unshared normalisation",
        ("shared_blocks.py --ablation",),
        "unsharing the statistics matters most",
    ),
    "jastrzebski2018/fig10": Artifact("cosine loss of each block, CIFAR-100", FOUR100),
    "jastrzebski2018/fig11": Artifact("l2 ratio of each block, CIFAR-100", FOUR100),
    "jastrzebski2018/fig12": Artifact("accuracy without each block, CIFAR-100", FOUR100),
    "jastrzebski2018/fig13": Artifact("cosine of each block in training", FOUR, "negative"),
    "jastrzebski2018/fig14": Artifact("l2 ratio of each block in training", FOUR, "tends to rise"),
    "jastrzebski2018/fig15": Artifact("cosine of each block in training, CIFAR-100", FOUR100),
    "jastrzebski2018/fig16": Artifact("l2 ratio of each block in training, CIFAR-100", FOUR100),
    "jastrzebski2018/fig17": Artifact("intermediate accuracy in training, CIFAR-100", FOUR100),
    "jastrzebski2018/fig18": Artifact(
        "the probes of a network with shared blocks, unshared normalisation",
        ("shared_blocks.py --networks ubn",),
        "as in networks that share nothing",
    ),
    "jastrzebski2018/fig19": Artifact(
        "the probes of naive sharing", ("shared_blocks.py --networks naive",)
    ),
    "jastrzebski2018/fig20": Artifact(
        "cosine and l2 ratio of the unrolled block",
        (REFINE,),
        "negative for two steps, and for all of them if f is scaled",
    ),
    "jastrzebski2018/equations2-4": Artifact(
        "for small blocks the loss changes by the sum of f . dL/dh",
        ("tests/callbacks/test_probes.py -k taylor",),
    ),
    "jastrzebski2018/appendix_a1": Artifact(
        "a step on the first layer moves h against its gradient",
        ("tests/test_theory.py -k against_its_gradient",),
    ),
    "jastrzebski2018/section4": Artifact(
        "parameters of the four networks",
        ("tests/applications/test_parameter_counts.py -k moving_averages",),
        "1,742,762, 1,829,210, 12,201,310 and 45,732,842",
    ),
    "yutomasi2019/table1": Artifact(
        "loss and error, plain and residual",
        (f"{PLAIN} table1",),
        "test error at depth 20, 32, 44: plain 12.63, 13.49, 22.13; residual 11.31, 11.43, 11.82 %",
    ),
    "yutomasi2019/table2": Artifact(
        "the plain network from the residual's start",
        (f"{PLAIN} table2",),
        "test error at depth 20, 32, 44: 11.21, 10.85, 11.59 %",
    ),
    "yutomasi2019/table3": Artifact(
        "weight statistics at depth 32",
        (f"{PLAIN} table3",),
        "the identity's entries of the residual network keep more than 76 % of the large mass",
    ),
    "yutomasi2019/table4": Artifact(
        "losses and penalties",
        (f"{PLAIN} table4",),
        "penalty before: plain 5.393e-4, 8.878e-4, 1.238e-3",
    ),
    "yutomasi2019/table5": Artifact(
        "dominant kernels",
        (f"{PLAIN} table5",),
        "test error at depth 20, 32, 44: 31.52, 31.19, 31.83 %",
    ),
    "yutomasi2019/fig3": Artifact(
        "layer cushions", (f"{STABLE} fig3",), "the residual network's are larger"
    ),
    "yutomasi2019/section5": Artifact(
        "cushions by block",
        (f"{STABLE} section5",),
        "interlayer cushion of one fully-fledged residual block: 0.20",
    ),
    "yutomasi2019/fig4": ILLUSTRATION,
    "yutomasi2019/fig5": ILLUSTRATION,
    "yutomasi2019/fig6": Artifact(
        "divergence of equivalent networks", ("divergence.py",), "grows very slowly"
    ),
    "yutomasi2019/fig7": Artifact(
        "weight histograms", (f"{PLAIN} fig7",), "the identity's entries stay near 0.9"
    ),
    "yutomasi2019/fig8": Artifact(
        "risk by epoch",
        (f"{PLAIN} fig8",),
        "the residual network is faster, and better at equal risk",
    ),
    "yutomasi2019/fig9": Artifact(
        "risk by epoch, two starts",
        (f"{PLAIN} fig9",),
        "Kaiming's start 0.13 and 0.46 at depth 32 and 44, the residual's 0.055 and 0.083",
    ),
    "yutomasi2019/fig10": Artifact(
        "final features and their gradients", (f"{STABLE} fig10",), "nearly normal"
    ),
    "yutomasi2019/fig11": Artifact(
        "dominance in the trivial case",
        ("trivial_dominance.py",),
        "falls with width, depth and deviation, rises with the share of open ReLUs",
    ),
    "yutomasi2019/fig12": Artifact(
        "dominance by layer",
        (f"{STABLE} fig12",),
        "residual over plain 1.24 in shallow, 4.06 in deep layers; fully-fledged 0.99, 3.07",
    ),
    "yutomasi2019/fig13": Artifact("appendix E's probability", ("trivial_dominance.py",)),
}
