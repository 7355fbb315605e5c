"""What the process that forks render helpers does before it forks."""

from services.agent.inputs.templates.render_helper import warm_up


def test_the_text_that_warms_an_interpreter_is_rendered_to_its_end() -> None:
    """A fault, or data that is missing, would end it early, and helpers would inherit little."""
    answer = warm_up()
    assert answer.is_whole and not answer.fault
    assert answer.text == b'W0=10.0.0.1:80:a,b:"warm"\nW1=10.0.0.1:80:a,b:"warm"\nNAME=onON'
    assert answer.variables["NAME"] == "onON"
