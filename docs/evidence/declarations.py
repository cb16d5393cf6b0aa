"""Tables of parameters, read from their declarations."""

from collections.abc import Collection

from helpers.parameters import Parameters, extra
from helpers.show import tables


def table(declared: type[Parameters], *, groups: Collection[str] = (), names: Collection[str] = ()) -> str:
    """A row for each parameter that is in one of the groups or is named, in the order of the declarations."""
    assert set(names) <= declared.model_fields.keys()
    return tables.markdown(
        [
            {
                "parameter": f"`{name}`",
                "default": f"`{field.default!r}`",
                "meaning": field.description.replace("|", "\\|"),
            }
            for name, field in declared.model_fields.items()
            if name in names or extra(field)["group"] in groups
        ]
    )
