"""First-party exporters, registered through the entry-point group ``archc.exporter`` like anyone's."""
