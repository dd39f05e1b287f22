"""Places as values, and the errors of wrong ones. Nothing is started."""

import evener
import pytest


def test_places_are_values():
    assert evener.ssh("a", "b") == evener.ssh("a", "b") != evener.ssh("a")
    first = evener.slurm(nodes=4, gpus=2, cores=16, memory="64GB", time="1:00:00", partition="gpu")
    assert first == evener.slurm(num_nodes=4, gpus_per_node=2, cpus=16, mem="64GB", walltime="1:00:00", queue="gpu")
    assert dict(first.request)["gpus"] == "2"
    assert evener.local(2) == evener.local(workers=2)


@pytest.mark.parametrize(
    "option, near", [("partion", "partition"), ("memry", "memory"), ("gpu_per_node", "gpus_per_node"), ("core", "cores")]
)
def test_an_unknown_option_names_the_nearest(option, near):
    with pytest.raises(TypeError, match="evener.slurm has no option '%s': did you mean '%s'" % (option, near)):
        evener.slurm(**{option: 1})
    with pytest.raises(TypeError, match="evener.cluster has no option '%s': did you mean '%s'" % (option, near)):
        evener.cluster(**{option: 1})(len)


def test_the_decorator_takes_options_of_loops_and_of_slurm():
    @evener.cluster(cores=4, memory="1GB", time="0:10:00", partition="main", strict=True, retries=1)
    def double(xs):
        return [x * 2 for x in xs]

    assert double._settings.strict and double._settings.retries == 1
    assert dict(double._settings.where.request) == {"cores": "4", "memory": "1GB", "partition": "main", "time": "0:10:00"}
    assert double.plain([1, 2]) == [2, 4]
    with pytest.raises(TypeError, match="no option 'stric': did you mean 'strict'"):
        evener.cluster(stric=True)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: evener.ssh(), "at least one host"),
        (lambda: evener.ssh("a", workers=0), "above 0"),
        (lambda: evener.slurm(memory=64), "no unit"),
        (lambda: evener.slurm(cores=1, cpus=2), "given twice"),
        (lambda: evener.Pool(where="gpu"), "where= is a place"),
        (lambda: evener.Pool(2, where=evener.local()), "give workers"),
        (lambda: evener.Pool(where=evener.ssh("a b")), "letters, digits"),
        (lambda: evener.Pool(where=evener.ssh("-oProxyCommand=x")), "write it as"),
        (lambda: evener.Pool(where=evener.ssh("a", environment="nowhere")), "environment='nowhere'"),
        (lambda: evener.Pool(where=evener.ssh("a", environment="conda:a b")), "misread"),
        (lambda: evener.Pool(where=evener.ssh("a", environment={"venv": "/x", "conda": "y"})), "one of venv"),
        (lambda: evener.Pool(where=[evener.local(), "gpu"]), "evener.local"),
        (lambda: list(evener.map(len, [""], where=[evener.local(), "gpu"])), "evener.local"),
    ],
)
def test_what_a_place_cannot_mean_is_refused(make, text):
    with pytest.raises((TypeError, ValueError), match=text):
        make()
